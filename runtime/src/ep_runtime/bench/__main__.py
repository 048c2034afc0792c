"""Entry point of ``python -m ep_runtime.bench``."""

from ep_runtime.bench.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
