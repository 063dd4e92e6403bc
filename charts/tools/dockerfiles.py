"""Reads Dockerfiles and says what is wrong with them. Pure; knows as much of the syntax as ours use."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

FORBIDDEN_WORDS = ("curl", "wget", "apt-get", "apk", "git clone", "--index-url", "--extra-index-url", "--trusted-host")


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction with its continuation lines joined."""

    word: str
    text: str


def parse(text: str) -> list[Instruction]:
    """Instructions in order, without comments."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [Instruction(*line.split(maxsplit=1)) for line in joined.splitlines() if line.strip()]


def stages(instructions: list[Instruction]) -> list[list[Instruction]]:
    """Instructions by stage; what comes before the first FROM is the first."""
    result: list[list[Instruction]] = [[]]
    for instruction in instructions:
        if instruction.word == "FROM":
            result.append([])
        result[-1].append(instruction)
    return result


def copied(instructions: list[Instruction]) -> list[str]:
    """Paths that are copied out of the context."""
    found: list[str] = []
    for instruction in instructions:
        if instruction.word == "COPY" and "--from=" not in instruction.text:
            found += [part for part in instruction.text.split()[:-1] if not part.startswith("--")]
    return found


def problems(text: str) -> list[str]:
    """Everything that is wrong with the Dockerfile ``text``."""
    instructions = parse(text)
    head, *built = stages(instructions)
    return [*_bases(head, built), *_last_stage(built[-1] if built else []), *_commands(instructions)]


def _bases(head: list[Instruction], built: list[list[Instruction]]) -> Iterator[str]:
    arguments = dict(instruction.text.partition("=")[::2] for instruction in head if instruction.word == "ARG")
    if len(built) < 2:
        yield "must have a stage that builds and one that runs"
    for stage in built:
        base = stage[0].text.split()[0]
        name = re.fullmatch(r"\$\{(\w+)\}", base)
        if name is None or name[1] not in arguments:
            yield f"base {base} must be an ARG before the first FROM"
            continue
        default = arguments[name[1]]
        if _names_a_registry(default):
            yield f"{default} names a registry"
        if ":" not in default.rsplit("/", 1)[-1] or default.endswith(":latest"):
            yield f"{default} must have a tag that is not latest"


def _names_a_registry(image: str) -> bool:
    first, slash, _ = image.partition("/")
    return bool(slash) and ("." in first or ":" in first or first == "localhost")


def _last_stage(stage: list[Instruction]) -> Iterator[str]:
    users = [instruction.text for instruction in stage if instruction.word == "USER"]
    if not users or not re.fullmatch(r"[1-9]\d*(:[1-9]\d*)?", users[-1]):
        yield "the last USER must be a number that is not 0: Kubernetes cannot tell that a name is not root"
    starts = [instruction.text for instruction in stage if instruction.word == "ENTRYPOINT"]
    if not starts or not _is_list(starts[-1]):
        yield "ENTRYPOINT must be a list: a shell would not pass signals on"


def _is_list(text: str) -> bool:
    try:
        return isinstance(json.loads(text), list)
    except ValueError:
        return False


def _commands(instructions: list[Instruction]) -> Iterator[str]:
    for instruction in instructions:
        if instruction.word == "ADD":
            yield "ADD must be COPY"
        if instruction.word != "RUN":
            continue
        yield from (f"{word} must not be used" for word in FORBIDDEN_WORDS if word in instruction.text)
        for command in instruction.text.split("&&"):
            if _installs(command) and not _is_locked(command):
                yield f"not held by a lock: {command.strip()}"


def _installs(command: str) -> bool:
    return re.search(r"\bpip\b.*\b(install|wheel)\b", command) is not None and "uninstall" not in command


def _is_locked(command: str) -> bool:
    """Every file by hash, or our own source without dependencies and with the build tools that are there."""
    if "-r " in command:
        return "--require-hashes" in command and "--only-binary :all:" in command
    return "--no-deps" in command and ("--no-build-isolation" in command or "--no-index" in command)
