"""The command line: `funcl --help` answers at once, since every command imports what it needs itself."""

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
app.command()(demo.demo)
app.command()(run.run)
app.command()(compare.compare)
app.command()(compare.report)
app.command()(reproduce.reproduce)
app.command()(bench.bench)
app.add_typer(data.app, name="data")


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True)
    ] = False,
) -> None:
    """Answer options that belong to no command."""
    if version:
        typer.echo(f"funcl {__version__}")
        raise typer.Exit


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
