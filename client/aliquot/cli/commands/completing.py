"""`completion`: a script by which a shell completes commands, actions and options; and what that asks."""

from __future__ import annotations

import argparse

from aliquot.cli._command import Work
from aliquot.cli._out import Out
from aliquot.cli._parser import COMPLETE

_BASH = f"""\
_aliquot() {{
    local IFS=$'\\n'
    COMPREPLY=($(aliquot {COMPLETE} "${{COMP_WORDS[@]:1:COMP_CWORD}}" 2>/dev/null))
}}
complete -o default -F _aliquot aliquot"""
_SCRIPTS = {
    "bash": _BASH,
    "zsh": f"autoload -Uz compinit bashcompinit && compinit && bashcompinit\n{_BASH}",
    "fish": f"complete -c aliquot -a '(aliquot {COMPLETE} (commandline -opc)[2..] (commandline -ct) 2>/dev/null)'",
}


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "In ~/.bashrc:                     source <(aliquot completion bash)\n"
        "In ~/.zshrc:                      source <(aliquot completion zsh)\n"
        "In ~/.config/fish/config.fish:    aliquot completion fish | source"
    )
    parser.add_argument("shell", choices=_SCRIPTS, metavar="bash | zsh | fish")


def _completion(args: argparse.Namespace, out: Out) -> None:
    out.document({"shell": args.shell, "script": _SCRIPTS[args.shell]})
    out.word(_SCRIPTS[args.shell])


COMPLETION = Work(_configure, _completion)
