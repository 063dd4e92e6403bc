"""The course of `pdd demo`: prepare, start, calibrate, hold the conversations, show, judge. I/O in order; every decision is elsewhere."""

import secrets
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from pdd_cli.demo import checks, report, table
from pdd_cli.demo.calibration import longest_prompt
from pdd_cli.demo.chart import draw
from pdd_cli.demo.conversation import Turn, plan_new_tokens, script
from pdd_cli.demo.legs import OFF, ON, VISITOR, Deployment, Legs, tenant_names
from pdd_cli.demo.measure import Measured, measure
from pdd_cli.demo.options import DemoOptions
from pdd_cli.demo.results import Cache, Check, Pair
from pdd_cli.errors import BrokenPromiseError
from pdd_cli.local.engines import EngineOptions
from pdd_cli.local.model import CONTEXT_TOKENS, prepare_model
from pdd_cli.local.reaper import Reaper
from pdd_cli.local.router import RouterSpec
from pdd_cli.local.stack import LocalStack, StackSpec
from pdd_cli.terminal import TerminalProgress

# Two busy cores answer later than the product's defaults allow for, and move bytes at a tenth of a network card's rate.
# A read must fit into what is left of the hold, or it is not begun.
_THRESHOLD_TOKENS = 64
_CONNECTOR = {
    "recompute_threshold_tokens": _THRESHOLD_TOKENS,
    "claim": {
        "timeout_milliseconds": 3000,
        "read_timeout_milliseconds": 20_000,
        "hold_seconds": 60,
        "connect_timeout_seconds": 60,
    },
}
# Every turn is to go through P, however little it adds: that is what is shown.
_ROUTER = {"runOnDecodeBelowTokens": 0, "recomputeThresholdTokens": _THRESHOLD_TOKENS}
_MARGIN_TOKENS = 200


class Demonstration:
    """One run. `shown` is true once the results are on the screen; `judge` then says whether all promises held."""

    def __init__(self, options: DemoOptions, console: Console) -> None:
        self.shown = False
        self._options = options
        self._console = console
        self._progress = TerminalProgress(console)
        self._checks: list[Check] = []

    async def run(self) -> None:
        """Raises CliError. Whatever happens, everything that was started is ended when this returns."""
        options = self._options
        with Reaper() as reaper:
            model = await prepare_model(options.engine_python, options.cache, self._progress, reaper)
        tenants = {name: f"pdd-demo-{secrets.token_urlsafe(18)}" for name in tenant_names()}
        async with LocalStack(self._stack_spec(model, tenants), self._progress) as stack:
            with self._progress.task("Measuring prefill on this machine") as task:
                first, *others = stack.engines
                measured = await measure(first, others, stack.session, task)
            longest = longest_prompt(
                measured.cost, options.target_seconds, CONTEXT_TOKENS - _MARGIN_TOKENS - options.max_tokens
            )
            turns = script(plan_new_tokens(options.turns, longest), measured.rates)
            legs = Legs(_deployment(stack), tenants, turns, options.max_tokens, self._progress)
            pairs = await self._hold(legs)
            self._checks = await self._check(legs, pairs)
            self._show(pairs, self._setting(measured, longest, turns))
            if options.keep:
                await self._serve(stack, tenants)

    def judge(self) -> None:
        """Raises BrokenPromiseError naming what did not hold."""
        broken = [check.name for check in self._checks if not check.held]
        if broken:
            raise BrokenPromiseError(
                f"this did not hold: {', '.join(broken)} (see above, and the logs in {self._options.out / 'logs'})"
            )

    def _stack_spec(self, model: Path, tenants: dict[str, str]) -> StackSpec:
        keys = {key: name for name, key in tenants.items()}
        return StackSpec(
            python=self._options.engine_python,
            model=model,
            run_folder=self._options.out / "logs",
            prefills=self._options.prefills,
            options=EngineOptions(max_model_len=CONTEXT_TOKENS, development_api=True),
            connector=_CONNECTOR,
            routers=(
                RouterSpec(OFF, "PrefillToDecode", keys, _ROUTER),
                RouterSpec(ON, "Bidirectional", keys, _ROUTER),
            ),
        )

    async def _hold(self, legs: Legs) -> list[Pair]:
        if self._options.prefills > 1:
            return [await legs.hold(Cache.KEPT)]
        pairs = [await legs.hold(Cache.EMPTIED)]
        if not self._options.quick:
            pairs.append(await legs.hold(Cache.KEPT))
        return pairs

    async def _check(self, legs: Legs, pairs: list[Pair]) -> list[Check]:
        every_leg = [leg for pair in pairs for leg in (pair.off, pair.on)]
        first = pairs[0]
        found = [
            checks.check_same_replies(every_leg),
            checks.check_reads_everything(first.on, EngineOptions().block_size, _THRESHOLD_TOKENS),
            checks.check_read_bytes(first.on),
        ]
        if first.cache is Cache.EMPTIED:
            limits = checks.Thresholds.of(quick=self._options.quick)
            found += [checks.check_speedup(first, limits.speedup), checks.check_growth(first)]
            if len(pairs) > 1:
                found.append(checks.check_own_cache(first, pairs[1], limits.own_cache))
        else:
            found.append(checks.check_less_computed(first))
        found.append(checks.check_nothing_held(await legs.held_at_the_end()))
        return found

    def _show(self, pairs: list[Pair], setting: dict[str, object]) -> None:
        for pair in pairs:
            self._console.print()
            self._console.print(table.pair_table(pair))
        for line in table.check_lines(self._checks):
            self._console.print(line, soft_wrap=True)
        self._console.print(f"\n[bold]{escape(report.summary_line(pairs))}[/]", highlight=False)
        out = self._options.out
        with self._progress.task("Drawing"):
            draw(pairs[0], pairs[1].off if len(pairs) > 1 else None, out / "demo.png")
            report.write_json(out / "demo.json", report.report(pairs, self._checks, setting))
        self._console.print(
            f"Picture: {out / 'demo.png'}   figures: {out / 'demo.json'}   logs: {out / 'logs'}", highlight=False
        )
        self.shown = True

    def _setting(self, measured: Measured, longest: int, turns: tuple[Turn, ...]) -> dict[str, object]:
        return {
            "model": "SmolLM2-135M-Instruct (float32)",
            "turns": len(turns),
            "prefills": self._options.prefills,
            "max_tokens": self._options.max_tokens,
            "planned_longest_prompt_tokens": longest,
            "prefill_seconds_per_token": measured.cost.linear,
            "prefill_seconds_per_token_squared": measured.cost.quadratic,
        }

    async def _serve(self, stack: LocalStack, tenants: dict[str, str]) -> None:
        url = stack.routers[ON].url
        key = tenants[VISITOR]
        body = '{"model": "%s", "stream": true, "messages": [{"role": "user", "content": "What is the capital of France?"}]}'
        self._console.print(f"\nServing at [bold]{url}/v1[/] until Ctrl-C. Try:\n")
        self._console.print(
            f"curl -iN {url}/v1/chat/completions -H 'Authorization: Bearer {key}' -H 'Content-Type: application/json' "
            f"-d '{body % stack.spec.served_name}'\n",
            markup=False, highlight=False, soft_wrap=True,
        )  # fmt: skip
        await stack.wait_for_an_end()


def _deployment(stack: LocalStack) -> Deployment:
    return Deployment(
        tuple(stack.engines), stack.routers, stack.session, stack.spec.served_name, stack.spec.options.block_size
    )
