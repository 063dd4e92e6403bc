"""Turns a GGUF file into a folder that vLLM serves. Run by the ENGINE interpreter as a script, so it imports nothing of `pdd_cli`.

    python convert_model.py GGUF_FOLDER GGUF_NAME OUT

Weights are written as float32: what CPU engines compute in. OUT is only complete when the process ends with 0.
"""

import importlib
import sys
from pathlib import Path


def convert(folder: Path, name: str, out: Path) -> None:
    """Raises whatever transformers raises on a file that it does not understand."""
    # Imported by name: these libraries exist in the engine environment only, where no type checker looks.
    torch = importlib.import_module("torch")
    transformers = importlib.import_module("transformers")

    model = transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32)
    # The weights are whole numbers no longer; left in, these two make vLLM look for a GGUF quantisation.
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.hf_quantizer = None
    model.is_quantized = False
    model.save_pretrained(out, safe_serialization=True)
    transformers.AutoTokenizer.from_pretrained(folder, gguf_file=name).save_pretrained(out)


if __name__ == "__main__":
    convert(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
