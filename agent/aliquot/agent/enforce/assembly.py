"""Makes the tiers of an agent from its settings."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import TypeGuard

from aliquot.agent.core.model import Holder
from aliquot.agent.core.samples import DeviceInfo
from aliquot.agent.enforce.base import Enforcer, Limited
from aliquot.agent.enforce.by_vendor import ByVendor
from aliquot.agent.enforce.nothing_set import NoEnforcer, WatchdogEnforcer
from aliquot.agent.enforce.pacing import Paced, is_mps, library_of
from aliquot.agent.enforce.preload import PreloadEnforcer
from aliquot.common.tiers import Tier, parse_tier


def assemble(
    names: tuple[str, ...],
    *,
    directory: Path,
    throttle: bool,
    blind: Callable[[str], str],
    powerless: Callable[[], str],
    unusable: Callable[[DeviceInfo], str],
    tell: Callable[[str], None] = lambda text: None,
    own: Iterable[tuple[str, Enforcer]] = (),
) -> list[Enforcer]:
    """The enforcers of the named tiers; whole devices are always held by `none`. `directory`: where tiers keep what
    the lease's processes load or connect to. `unusable(device)`: why no program can use it. `tell`: takes what
    people should know of. `own`: those that are a vendor's, see `DeviceBackend.enforcers`. `preload` and
    `mps` are NVIDIA's. Raises `InvalidFieldError` for a name that is no tier.
    """
    library = PreloadEnforcer(directory / "preload", unusable, throttle=throttle)

    def paced(enforcer: Enforcer) -> Enforcer:
        return Paced(enforcer, library) if throttle else enforcer

    def mps() -> Enforcer:
        from aliquot.agent.enforce.mps import FOLDER, MpsEnforcer  # noqa: PLC0415 - few nodes name it

        return MpsEnforcer(directory / FOLDER, unusable, tell, ByVendor(Tier.DRIVER, own))

    makers: Mapping[Tier, Callable[[], Enforcer]] = {
        Tier.MIG: lambda: ByVendor(Tier.MIG, own),
        Tier.DRIVER: lambda: paced(ByVendor(Tier.DRIVER, own)),
        Tier.MPS: mps,
        Tier.PRELOAD: lambda: library,
        Tier.WATCHDOG: lambda: paced(WatchdogEnforcer(blind, powerless, unusable)),
    }
    wanted = {parse_tier(name, "enforcement.tiers") for name in names} - {Tier.NONE}
    return [NoEnforcer(), *(makers[tier]() for tier in sorted(wanted))]


def preloads(names: Iterable[str], *, throttle: bool) -> bool:
    """Whether programs of a part of a device are likely to load the preload library: it holds their memory, or keeps
    their pace where another tier does.
    """
    found = {parse_tier(name, "enforcement.tiers") for name in names}
    return Tier.PRELOAD in found or (throttle and bool({Tier.DRIVER, Tier.WATCHDOG} & found))


def environment_of(enforcer: Enforcer, limited: Limited, present: Mapping[str, str], uid: int) -> Mapping[str, str]:
    """What a process of the lease must have set, merged with what it has; a user whom the tier has to know is let in.

    Raises `EnforcementError`.
    """
    variables = dict(enforcer.environment(limited))
    library = library_of(enforcer, limited)
    if library is not None:
        library.admit(limited, uid)
        variables |= library.merge_environment(limited, present)
    if is_mps(enforcer):
        enforcer.admit(limited, uid)
    return variables


def folders_of(enforcer: Enforcer, limited: Limited) -> list[str]:
    """Folders that processes of the lease need at these paths, where they have a file system of their own."""
    library = library_of(enforcer, limited)
    if library is not None:
        return [str(Path(library.environment(limited)["LD_PRELOAD"]).parent)]
    variables = enforcer.environment(limited)
    if is_mps(enforcer):
        return [variables["CUDA_MPS_PIPE_DIRECTORY"], variables["CUDA_MPS_LOG_DIRECTORY"]]
    return []


def check_processes(enforcer: Enforcer, limited: Limited, pids: Collection[int]) -> None:
    """Have a tier check that these processes of a slice are under its limit. Raises `EnforcementError`."""
    if is_mps(enforcer):
        enforcer.look_at_clients(limited, pids)


def release(enforcer: Enforcer | None, holder: Holder, pid: int) -> None:
    """Before a process of a holder is killed: have a tier let go of what would suffer by it. Raises nothing."""
    if is_mps(enforcer):
        enforcer.release(holder, pid)


def asks_nobody(enforcer: Enforcer) -> bool:
    """Whether a tier reads a limit back from what the agent knows itself, so that no thread is needed for it."""
    held = enforcer.enforcer if isinstance(enforcer, Paced) else enforcer
    return isinstance(held, (NoEnforcer, WatchdogEnforcer))


def keeps_account(enforcer: Enforcer) -> TypeGuard[PreloadEnforcer]:
    """Whether a tier keeps an account of its own, to be compared with what the driver sees."""
    return isinstance(enforcer, PreloadEnforcer)
