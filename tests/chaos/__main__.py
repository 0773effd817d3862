"""``python -m tests.chaos --cycles N --seed S``: bring trouble upon brokers, check their promises.

Three forms, one after the other unless one is chosen: `single` kills one broker over and over;
`cluster` has two brokers, three ZooKeeper servers and three bookies, and faults of all kinds;
`bookkeeper` is the same on four real bookies, which are met, too.

At the end what the brokers wrote down is audited, and held against what the clients know.

Exit code 0: every promise was kept. 1: one was broken; seed, cycle, positions and the data
directory are printed. With ``--break-receipts`` the broker confirms acks that are not durable, and
0 means that this was noticed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import shutil
import sys
import tempfile
import time
from pathlib import Path

from ackgate.pipeline.running.session import local_session
from tests.chaos.cluster_run import ClusterRun
from tests.chaos.cluster_schedule import Trouble
from tests.chaos.journals import KeptRun, witness
from tests.chaos.run import BROKEN, ChaosFailedError, ChaosRun
from tests.chaos.small_file_system import SMALL_BYTES, NotMountableError, SmallFileSystem
from tests.chaos.wire_load import Style
from tests.pipeline.small_plans import SMALL_PLANS
from tests.support.bookkeeper import missing

FORMS = ("single", "cluster", "bookkeeper")


def main() -> int:
    """Run, print, tell."""
    arguments = _parser().parse_args()
    seed = time.time_ns() // 1_000_000 % 1_000_000 if arguments.seed is None else arguments.seed
    logging.getLogger("asyncio").setLevel(logging.ERROR)  # it warns of writes to the dead
    forms = FORMS if arguments.form is None else (arguments.form,)
    return max(_run(form, seed, arguments) for form in forms)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--cycles", type=int, default=20)
    parser.add_argument("--form", choices=FORMS, help="default: all")
    parser.add_argument("--seed", type=int, default=None, help="default: by the clock")
    parser.add_argument(
        "--subscription-types",
        default=",".join(style.value for style in Style),
        help="of %(default)s",
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="of broker.conf; wins"
    )
    parser.add_argument(
        "--damage", action="store_true", help="single: flip bits in the files of one bookie"
    )
    parser.add_argument("--break-receipts", action="store_true", help="must be noticed")
    parser.add_argument(
        "--only",
        default="",
        metavar="TROUBLE,...",
        help="cluster: of " + ", ".join(trouble.name for trouble in Trouble),
    )
    parser.add_argument("--no-audit", action="store_true", help="leave out the audit, and Spark")
    parser.add_argument("--steps", action="store_true", help="cluster: tell every step")
    return parser


def _run(form: str, seed: int, arguments: argparse.Namespace) -> int:
    directory = Path(tempfile.mkdtemp(prefix=f"ackgate-chaos-{form}-{seed}-"))
    print(f"{form}: seed {seed}, {arguments.cycles} cycles, data in {directory}", flush=True)
    settings = dict(pair.split("=", 1) for pair in arguments.set)
    if arguments.break_receipts:
        settings = {**settings, **BROKEN}
    common = {
        "styles": [Style(name) for name in arguments.subscription_types.split(",")],
        "settings": settings,
        "report": lambda line: print(line, flush=True),
    }
    run: ClusterRun | ChaosRun
    files: SmallFileSystem | None = None
    if form == "bookkeeper" and (why := missing()):
        print(f"left out: {why}")
        return 0
    if form in {"cluster", "bookkeeper"}:
        run = ClusterRun(
            directory,
            seed,
            tells_all=arguments.steps,
            only=[Trouble[name] for name in arguments.only.split(",") if name],
            is_on_real_bookies=form == "bookkeeper",
            **common,
        )
    else:
        files = _small_file_system(directory)
        run = ChaosRun(directory, seed, files=files, is_damaging=arguments.damage, **common)
    began = time.monotonic()
    try:
        with files or contextlib.nullcontext():
            asyncio.run(run.run(arguments.cycles))
    except ChaosFailedError as failure:
        print(failure, file=sys.stderr)
        if arguments.break_receipts:
            print("noticed, as it should be")
            shutil.rmtree(directory)
            return 0
        return 1
    if not (arguments.break_receipts or arguments.no_audit):
        wrong = _audit(run.kept(), directory)
        if wrong:
            print(
                f"seed {seed}: by the journals, in {directory}:", *wrong, sep="\n", file=sys.stderr
            )
            return 1
    shutil.rmtree(directory)
    if arguments.break_receipts:
        print("receipts promised nothing, and nobody noticed", file=sys.stderr)
        return 1
    if isinstance(run, ClusterRun):
        print(run.figures_text())
    print(f"{arguments.cycles} cycles in {time.monotonic() - began:.0f} s: every promise kept")
    return 0


def _small_file_system(directory: Path) -> SmallFileSystem | None:
    (directory / "disk").mkdir()
    try:
        return SmallFileSystem.open(directory / "disk", SMALL_BYTES)
    except NotMountableError as error:
        print(f"no disk will be full: no small file system can be mounted here: {error}")
        return None


def _audit(run: KeptRun, directory: Path) -> list[str]:
    scratch = directory / "spark"
    scratch.mkdir()
    spark = local_session(
        "local[2]", app_name="chaos", scratch=scratch, driver_memory="2g", settings=SMALL_PLANS
    )
    try:
        return witness(spark, [run]).contradictions([run])
    finally:
        spark.stop()


if __name__ == "__main__":
    sys.exit(main())
