"""Run the command line with `python -m hookpoint`."""

from hookpoint.cli.main import main

if __name__ == "__main__":
    main(prog_name="hookpoint")
