"""``python -m ackgate`` is the ``ackgate`` command."""

from ackgate.broker.cli import main

raise SystemExit(main())
