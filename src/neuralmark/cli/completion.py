"""`neuralmark completion`: shell completion."""

import click


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print the completion script of a shell.

    \b
    bash:  neuralmark completion bash > ~/.local/share/bash-completion/completions/neuralmark
    zsh:   neuralmark completion zsh > ~/.zfunc/_neuralmark
    fish:  neuralmark completion fish > ~/.config/fish/completions/neuralmark.fish
    """
    from click.shell_completion import get_completion_class

    from neuralmark.cli import neuralmark

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(neuralmark, {}, "neuralmark", "_NEURALMARK_COMPLETE").source())
