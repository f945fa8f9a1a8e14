"""The command line: `funcl --help` answers at once, for commands import what they run on."""

import inspect
import sys
import warnings
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from funcl import __version__
from funcl.commands import bench, compare, data, demo, reproduce, run
from funcl.errors import FunclError


class Commands(TyperGroup):
    """Turns every mistake that a user can mend into one line and exit code 2."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keep the command line as it was typed, for the record of a run."""
        ctx.meta["funcl.arguments"] = list(args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        try:
            with warnings.catch_warnings():
                warnings.showwarning = _show_warning
                return super().invoke(ctx)
        except FunclError as mistake:
            _say(str(mistake))
            raise typer.Exit(2) from None
        except OSError as mistake:
            where = f"{mistake.filename}: " if mistake.filename else ""
            _say(f"{where}{mistake.strerror or mistake}.")
            raise typer.Exit(2) from None
        except KeyboardInterrupt:
            _say("stopped.")
            raise typer.Exit(130) from None


def unwrapped(text: str | None) -> str:
    """Join the lines of every paragraph, so that the terminal's width decides where they break.

    Paragraphs that begin with \\b keep their lines.
    """
    paragraphs = inspect.cleandoc(text or "").split("\n\n")
    return "\n\n".join(p if p.startswith("\b") else " ".join(p.split()) for p in paragraphs)


app = typer.Typer(
    cls=Commands,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Learn one task after another without forgetting, and say how sure you are.\n\n"
    "Begin with [bold]funcl demo[/bold]: it trains on digits that are inside the package, prints a"
    " comparison and writes a report.",
)
for command in (
    demo.demo, run.run, compare.compare, compare.report, reproduce.reproduce, bench.bench
):  # fmt: skip
    app.command(help=unwrapped(command.__doc__))(command)
app.add_typer(data.app, name="data")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"funcl {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version and exit.", is_eager=True, callback=_show_version
        ),
    ] = False,
) -> None:
    """Answer options that belong to no command."""


def main() -> None:
    """Entry point of the `funcl` command."""
    app(prog_name="funcl")


def _say(sentence: str) -> None:
    sys.stdout.flush()
    print(f"funcl: {' '.join(sentence.split())}", file=sys.stderr)


def _show_warning(message: Any, *_: Any, **__: Any) -> None:
    _say(f"warning: {message}")


if __name__ == "__main__":
    main()
