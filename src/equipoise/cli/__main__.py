"""`python -m equipoise.cli`."""

from equipoise.cli import main

if __name__ == "__main__":
    main()
