"""The command behind `make mutants`."""

import argparse
import sys
from collections import Counter

from . import Mutant, table
from .runner import Outcome, run

ENOUGH = 0.95  # of the mutants must be noticed


def main(arguments=None) -> int:
    parser = argparse.ArgumentParser(prog="mutants", description=__doc__)
    parser.add_argument(
        "--only", metavar="PATTERN", default="", help="mutants whose file or text holds this"
    )
    parser.add_argument("--list", action="store_true", help="show the mutants, run nothing")
    parser.add_argument("--workers", metavar="N", type=int, default=2, help="tests at a time")
    given = parser.parse_args(arguments)
    mutants = [m for m in table() if given.only in f"{m.file} {m.old} {m.new} {m.tests}"]
    if not mutants:
        print(f"no mutant holds {given.only!r}", file=sys.stderr)
        return 2
    if given.list:
        for mutant in mutants:
            print(f"{mutant.file}:{mutant.line()}  {mutant}  [{mutant.tests}] {mutant.reason}")
        return 0
    outcomes = run(mutants, workers=given.workers)
    print(summary(mutants, outcomes))
    if len(outcomes) < len(mutants):
        return 130
    return 0 if passed(outcomes) else 1


def noticed(outcomes: list[Outcome]) -> float:
    """The part of the mutants that the tests noticed, of those that they should."""
    judged = [x for x in outcomes if x.noticed or x.verdict == "survived"]
    return sum(x.noticed for x in judged) / max(len(judged), 1)


def passed(outcomes: list[Outcome]) -> bool:
    return noticed(outcomes) >= ENOUGH and not any(x.fault for x in outcomes)


def summary(mutants: list[Mutant], outcomes: list[Outcome]) -> str:
    lines = [""]
    for outcome in outcomes:
        if not outcome.noticed:
            reason = outcome.mutant.reason or outcome.detail
            lines.append(
                f"{outcome.verdict}: {outcome.where}  {outcome.mutant}"
                + (f"\n    {reason}" if reason else "")
            )
    counts = Counter(x.verdict for x in outcomes)
    counts["not run"] = len(mutants) - len(outcomes)
    told = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
    lines.append(f"{noticed(outcomes):.1%} of the mutants were noticed ({told})")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
