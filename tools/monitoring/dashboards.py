"""The dashboards: which questions they answer, and how each is asked.

Series of coordinators are summed, so that it does not matter which one leads; those of agents have a device or a lease
each. What leases use is joined to their tenants by `aliquot_lease_info`.
"""

from __future__ import annotations

from tools.monitoring.panels import Board, Panel, Unit, Variable, lines, listing, number, stack

_POOL = 'pool=~"$pool"'
_TENANT = 'tenant=~"$tenant"'
_NODE = 'node=~"$node"'
_POOLS = Variable("pool", "Pool", "label_values(aliquot_devices, pool)")
_TENANTS = Variable("tenant", "Tenant", "label_values(aliquot_lease_info, tenant)")
_NODES = Variable("node", "Node", "label_values(aliquot_device_healthy, node)")
_DEVICE = "{{node}} {{index}}"
_OF_TENANT = "* on (node, slice_id) group_left (tenant) max by (node, slice_id, tenant) (aliquot_lease_info{" + (
    _TENANT + "})"
)


def _quantiles(name: str, *, by: str = "") -> tuple[tuple[str, str], ...]:
    """The median and the 95th percentile of a histogram."""
    rates = f"sum by (le{by}) (rate({name}_bucket[$__rate_interval]))"
    return tuple(
        (f"histogram_quantile({quantile}, {rates})", text) for quantile, text in ((0.5, "half"), (0.95, "95 %"))
    )


def _quota(bound: str) -> str:
    """An amount of tenants that was declared, or is held of it."""
    return f'max by (name) (aliquot_quota_share_milli{{kind="tenant", bound="{bound}", name=~"$tenant"}})'


def _rate(name: str, by: str) -> tuple[str, str]:
    return f"sum by ({by}) (rate({name}[$__rate_interval]))", "{{" + by + "}}"


POOL = Board(
    "aliquot-pool",
    "Aliquot: pool",
    "What there is, what is leased, what is used.",
    (
        number("Devices", "All that the pool knows.", f"sum(aliquot_devices{{{_POOL}}})"),
        number(
            "Leased", "Part of all shares that leases hold.",
            f"sum(aliquot_leased_share_milli{{{_POOL}}}) / sum(aliquot_capacity_share_milli{{{_POOL}}})",
            Unit.PART, (0.7, 0.9),
        ),
        number("Waiting", "Requests that wait for capacity.", "sum(aliquot_queue_depth)", Unit.NONE, (50, 100)),
        number("Cards out", "Cards that incidents keep out of service.", "sum(aliquot_cards_out) or vector(0)",
               Unit.NONE, (1, 5)),
        lines(
            "Leased, by model", "Part of the shares of each model that leases hold.",
            ((f"sum by (pool, model) (aliquot_leased_share_milli{{{_POOL}}})"
             f" / sum by (pool, model) (aliquot_capacity_share_milli{{{_POOL}}})"), "{{pool}} {{model}}"),
            unit=Unit.PART,
        ),
        lines(
            "Leased against used", "What leases hold, and what is busy, in devices: the gap is paid for and not used.",
            (f"sum(aliquot_leased_share_milli{{{_POOL}}}) / 1000", "leased"),
            ("sum(aliquot_device_utilisation_ratio)", "used"),
            (f"sum(aliquot_capacity_share_milli{{{_POOL}}}) / 1000", "there are"),
        ),
        lines(
            "Memory", "Device memory that can be leased, is leased, and is used.",
            (f"sum(aliquot_capacity_memory_bytes{{{_POOL}}})", "there is"),
            (f"sum(aliquot_leased_memory_bytes{{{_POOL}}})", "leased"),
            ("sum(aliquot_device_memory_used_bytes)", "used"),
            unit=Unit.BYTES,
        ),
        stack("Leases", "By state; those that have ended are kept for ten minutes.",
              ('sum by (state) (aliquot_leases{state!="ENDED"})', "{{state}}")),
        lines(
            "Coming and going", "Grants, and ends of leases by their reason.",
            ("sum(rate(aliquot_leases_granted_total[$__rate_interval]))", "granted"),
            ("sum by (reason) (rate(aliquot_leases_ended_total[$__rate_interval]))", "{{reason}}"),
            unit=Unit.PER_S,
        ),
        stack("Nodes", "By liveness.", ("sum by (state) (aliquot_nodes)", "{{state}}")),
        lines("Power", "Drawn by all devices of a node.", ("sum by (node) (aliquot_device_power_watts)", "{{node}}"),
              unit=Unit.WATTS),
        lines("Temperature", "The hottest device of each node.",
              ("max by (node) (aliquot_device_temperature_celsius)", "{{node}}"), unit=Unit.CELSIUS),
    ),
    (_POOLS,),
)  # fmt: skip

TENANT = Board(
    "aliquot-tenant",
    "Aliquot: tenants",
    "Who holds what, and what they make of it.",
    (
        stack("Devices held", "Whole devices' worth of shares.",
              (f"sum by (tenant) (aliquot_tenant_share_milli{{{_TENANT}}}) / 1000", "{{tenant}}")),
        stack("Memory held", "Of devices, by tenant.",
              (f"sum by (tenant) (aliquot_tenant_memory_bytes{{{_TENANT}}})", "{{tenant}}"), unit=Unit.BYTES),
        lines("Devices used", "Time of devices that the processes of leases use, in whole devices.",
              (f"sum by (tenant) (aliquot_slice_utilisation_ratio {_OF_TENANT})", "{{tenant}}")),
        lines(
            "Used of what is held", "1: everything that the tenant holds is busy.",
            ((f"sum by (tenant) (aliquot_slice_utilisation_ratio {_OF_TENANT})"
             f" / (sum by (tenant) (aliquot_tenant_share_milli{{{_TENANT}}}) / 1000)"), "{{tenant}}"),
            unit=Unit.PART,
        ),
        lines("Memory used of what is held", "By the processes of leases.",
              ((f"sum by (tenant) (aliquot_slice_observed_bytes {_OF_TENANT})"
               f" / sum by (tenant) (aliquot_slice_reserved_bytes {_OF_TENANT})"), "{{tenant}}"), unit=Unit.PART),
        stack("Leases", "That hold something.",
              (f"sum by (tenant) (aliquot_tenant_leases{{{_TENANT}}})", "{{tenant}}")),
        stack("Waiting", "Requests, by tenant.",
              (f"sum by (tenant) (aliquot_tenant_queued{{{_TENANT}}})", "{{tenant}}")),
        lines("Longest wait", "Of the request of each tenant that has waited longest.",
              (f"time() - min by (tenant) (aliquot_tenant_waiting_since_seconds{{{_TENANT}}})", "{{tenant}}"),
              unit=Unit.SECONDS),
        lines(
            "Held of the limit", "Share of devices, of tenants that have a limit; with all tenants below them.",
            (f"{_quota('held')} / {_quota('limit')}", "{{name}}"), unit=Unit.PART,
        ),
        lines(
            "Held of what is guaranteed", "Above 1: the rest is borrowed, and may be reclaimed.",
            (f"{_quota('held')} / ({_quota('guaranteed')} > 0)", "{{name}}"), unit=Unit.PART,
        ),
        lines("Budget used", "Of this period; at 1 nothing new is granted.",
              (f"max by (tenant) (aliquot_budget_used_ratio{{{_TENANT}}})", "{{tenant}}"), unit=Unit.PART),
        lines("Balance", "What is left of all that tenants have paid, in the currency of the prices.",
              (f"max by (tenant) (aliquot_tenant_balance_micro{{{_TENANT}}}) / 1e6", "{{tenant}}")),
        lines("Preemptions", "Of leases of a tenant, in an hour, by reason.",
              (f"sum by (tenant, reason) (rate(aliquot_preemptions_total{{{_TENANT}}}[$__rate_interval])) * 3600",
               "{{tenant}} {{reason}}")),
        lines("Jobs", "Leases that ended, in an hour, by what became of their programs.",
              (f"sum by (tenant, outcome) (rate(aliquot_jobs_total{{{_TENANT}}}[$__rate_interval])) * 3600",
               "{{tenant}} {{outcome}}")),
        lines("Completed", "Part of the jobs of the last hour, of which anything is known, that succeeded.",
              (f"aliquot:job_completion:ratio{{{_TENANT}}}", "{{tenant}}"), unit=Unit.PART),
        listing("Leases and where they are", "Each slice with its lease, node and tier.",
                f"max by (tenant, queue, lease_id, node, tier, state) (aliquot_lease_info{{{_TENANT}}})"),
    ),
    (_TENANTS,),
)  # fmt: skip

DEVICES = Board(
    "aliquot-devices",
    "Aliquot: devices",
    "Every device, its health, and how long repairs take.",
    (
        number("Not well", "Devices that take no new leases.",
               f"count(aliquot_device_healthy{{{_NODE}}} == 0) or vector(0)", Unit.NONE, (1, 5)),
        number("Incidents open", "From the first bad sign of a card to its return.", "sum(aliquot_incidents_open)",
               Unit.NONE, (1, 5)),
        number(
            "Mean time to repair", "From the first bad sign until service; 0: no card has been repaired yet.",
            "sum(aliquot_repair_seconds_sum) / sum(aliquot_repair_seconds_count) >= 0 or vector(0)", Unit.SECONDS,
        ),
        number(
            "Oldest incident", "Age of the oldest whose cards are still out; 0: none is.",
            "time() - min(aliquot_incident_oldest_seconds > 0) or vector(0)", Unit.SECONDS, (3600, 86400),
        ),
        stack("Slices that nobody knows", "Quarantined on their node, such as after a restore.",
              ("sum by (node) (aliquot_slices_unknown) or vector(0)", "{{node}}")),
        lines("Busy", "Part of the time in which a kernel ran.",
              (f"aliquot_device_utilisation_ratio{{{_NODE}}}", _DEVICE), unit=Unit.PART),
        lines("Memory", "Used by processes, of all there is.",
              (f"aliquot_device_memory_used_bytes{{{_NODE}}} / aliquot_device_memory_total_bytes{{{_NODE}}}", _DEVICE),
              unit=Unit.PART),
        lines("Activity", "The busiest engine's part of the time, by the best source that each device has.",
              (f"aliquot_device_activity_ratio{{{_NODE}}}", _DEVICE), unit=Unit.PART),
        lines("Temperature", "Of the chip.", (f"aliquot_device_temperature_celsius{{{_NODE}}}", _DEVICE),
              unit=Unit.CELSIUS),
        lines("Power", "Drawn.", (f"aliquot_device_power_watts{{{_NODE}}}", _DEVICE), unit=Unit.WATTS),
        lines("Clock", "Of the multiprocessors.", (f"aliquot_device_sm_clock_hertz{{{_NODE}}}", _DEVICE),
              unit=Unit.HERTZ),
        lines("Leased", "Share of each device that leases hold.",
              (f"aliquot_device_reserved_share_ratio{{{_NODE}}}", _DEVICE), unit=Unit.PART),
        lines("XIDs", "Of the last hour, by whom they concern: a program's own are nothing to the card.",
              (f"sum by (severity) (increase(aliquot_device_xids_total{{{_NODE}}}[1h]))", "{{severity}}")),
        stack("Cards that are not well", "By state; those on probation are in service.",
              ("sum by (state) (aliquot_cards_unwell)", "{{state}}")),
        stack("Cards out, by cause", "Now out of service.", ("sum by (cause) (aliquot_cards_out)", "{{cause}}")),
        lines("Uncorrected memory errors", "Since the driver was loaded.",
              (f"aliquot_device_uncorrected_memory_errors{{{_NODE}}}", _DEVICE)),
        lines(
            "Answers of the driver", "How long devices take to answer a poll.",
            *_quantiles("aliquot_agent_poll_seconds"), unit=Unit.SECONDS,
        ),
        listing("Acts of enforcement", "Decisions of the watchdog since each agent has started.",
                f"sum by (node, act) (aliquot_agent_enforcement_total{{{_NODE}}}) > 0"),
    ),
    (_NODES,),
)  # fmt: skip

QUEUE = Board(
    "aliquot-queue",
    "Aliquot: queue",
    "Who waits, how long, and what is refused.",
    (
        number("Waiting", "Requests that wait for capacity.", "sum(aliquot_queue_depth)", Unit.NONE, (50, 100)),
        number("Grants", "Of the last hour.", "sum(increase(aliquot_leases_granted_total[1h]))"),
        number("Set aside", "Requests and due work on which deciding failed too often.", "sum(aliquot_set_aside)",
               Unit.NONE, (1, 1)),
        number("Moved", "Leases taken to another place in the last hour.",
               "sum(increase(aliquot_leases_moved_total[1h]))"),
        stack("Waiting, by tenant and queue", "Requests.",
              ("sum by (tenant, queue) (aliquot_tenant_queued)", "{{tenant}} {{queue}}")),
        lines("Time in the queue", "From a request to its first grant.",
              *_quantiles("aliquot_queue_wait_seconds"), unit=Unit.SECONDS),
        lines("From grant to active", "Until all agents have set their limits and read them back.",
              *_quantiles("aliquot_grant_to_active_seconds"), unit=Unit.SECONDS),
        lines(
            "Guaranteed starts", "Requests that a guarantee covered, and those of them that took longer than a minute.",
            ("sum(increase(aliquot_guaranteed_start_seconds_count[$__rate_interval]))", "all"),
            (("sum(increase(aliquot_guaranteed_start_seconds_count[$__rate_interval]))"
             ' - sum(increase(aliquot_guaranteed_start_seconds_bucket{le="60.0"}[$__rate_interval]))'), "late"),
        ),
        lines("Time to decide", "One command.", *_quantiles("aliquot_decision_seconds"), unit=Unit.SECONDS),
        lines("Refused", "Calls answered with an error.", _rate("aliquot_requests_refused_total", "reason"),
              unit=Unit.PER_S),
        lines("Ends", "Of leases, by reason.", _rate("aliquot_leases_ended_total", "reason"), unit=Unit.PER_S),
    ),
)  # fmt: skip

_HELD_UNUSED = (
    "count by (tenant) ((max by (node, slice_id, tenant) (aliquot_lease_info))"
    " and on (node, slice_id) aliquot_slice_processes == 0)"
)
WASTE: Board = Board(
    "aliquot-waste",
    "Aliquot: waste",
    "What is paid for and not used, and why.",
    (
        number(
            "Idle devices", "Capacity that no lease holds, in devices.",
            f"(sum(aliquot_capacity_share_milli{{{_POOL}}}) - sum(aliquot_leased_share_milli{{{_POOL}}})) / 1000",
        ),
        number(
            "Leased, not used", "What leases hold less what is busy, in devices.",
            "clamp_min(sum(aliquot_device_reserved_share_ratio) - sum(aliquot_device_utilisation_ratio), 0)",
        ),
        number("Held by nobody", "Slices without a process.", "count(aliquot_slice_processes == 0) or vector(0)",
               Unit.NONE, (1, 10)),
        number("Out of service", "Cards that incidents keep out.", "sum(aliquot_cards_out) or vector(0)",
               Unit.NONE, (1, 5)),
        stack(
            "Where the devices are", "Used; leased and not used; idle.",
            ("sum(aliquot_device_utilisation_ratio)", "used"),
            ("clamp_min(sum(aliquot_device_reserved_share_ratio) - sum(aliquot_device_utilisation_ratio), 0)",
             "leased, not used"),
            (f"(sum(aliquot_capacity_share_milli{{{_POOL}}}) - sum(aliquot_leased_share_milli{{{_POOL}}})) / 1000",
             "idle"),
        ),
        lines(
            "Used of what is leased, by node", "1: everything that is leased there is busy.",
            (("sum by (node) (aliquot_device_utilisation_ratio)"
             " / (sum by (node) (aliquot_device_reserved_share_ratio) > 0)"), "{{node}}"),
            unit=Unit.PART,
        ),
        stack("What leases do", "In devices. HELD: no process is there; UNKNOWN: not measured long enough.",
              ("sum by (use) (aliquot_use_share_milli) / 1000", "{{use}}")),
        lines("Held for nothing, by tenant", "Devices' worth of shares of leases that are idle, or have no process.",
              ("sum by (tenant) (aliquot_tenant_quiet_share_milli) / 1000 or vector(0)", "{{tenant}}")),
        lines("Lent", "Devices' worth of shares whose idle holders lend them.",
              ("sum(aliquot_lent_share_milli) / 1000", "lent"),
              ("sum(rate(aliquot_idle_warnings_total[$__rate_interval])) * 3600", "warnings an hour")),
        lines("Slices without a process", "They hold, and nobody is there: by tenant.", (_HELD_UNUSED, "{{tenant}}")),
        lines(
            "Memory held and not used, by tenant", "Reserved by slices, less what their processes hold.",
            (("sum by (tenant) ((aliquot_slice_reserved_bytes - on (node, slice_id) aliquot_slice_observed_bytes)"
             f" {_OF_TENANT.replace(_TENANT, '')})"), "{{tenant}}"),
            unit=Unit.BYTES,
        ),
        lines("Fragmented", "Part of the idle capacity that requests of late can't use.",
              (f"max by (pool, model) (aliquot_fragmentation_ratio{{{_POOL}}})", "{{pool}} {{model}}"),
              unit=Unit.PART),
        stack("Nodes that come and go", "Of all shapes on offer: here, coming, leaving.",
              ("sum by (phase) (aliquot_shape_nodes) or vector(0)", "{{phase}}")),
        lines("Orders of nodes that ended otherwise", "An hour: failed, or withdrawn.",
              (('sum by (shape, state) (rate(aliquot_node_orders_total{state=~"FAILED|WITHDRAWN"}'
                "[$__rate_interval])) * 3600 or vector(0)"), "{{shape}} {{state}}")),
        lines("Foreign memory", "Covered by no slice: of processes outside any lease, or beyond a limit.",
              ("sum by (node) (aliquot_device_foreign_bytes)", "{{node}}"), unit=Unit.BYTES),
    ),
    (_POOLS,),
)  # fmt: skip

CONTROL = Board(
    "aliquot-control-plane",
    "Aliquot: control plane",
    "Whether the coordinators, the journal and the agents are well.",
    (
        number("Leading", "Coordinators that lead: always 1.", "sum(aliquot_leading)"),
        number("Granting", "1 while anything is granted.", "sum(aliquot_granting)"),
        number("Agents", "That are connected.", "sum(aliquot_agent_sessions)"),
        number("Nodes silent", "SUSPECT and LOST.", 'sum(aliquot_nodes{state=~"SUSPECT|LOST"}) or vector(0)',
               Unit.NONE, (1, 5)),
        lines("Calls", "With one answer, by method.", _rate("aliquot_calls_total", "method"), unit=Unit.PER_S),
        lines("Calls answered with an error", "By reason.", _rate("aliquot_requests_refused_total", "reason"),
              unit=Unit.PER_S),
        lines("Time to decide", "One command.", *_quantiles("aliquot_decision_seconds"), unit=Unit.SECONDS),
        lines("Time to be durable", "A group of facts: above all, the disk's sync.",
              *_quantiles("aliquot_commit_seconds"), unit=Unit.SECONDS),
        lines("Facts", "That became durable.", ("rate(aliquot_durable_facts[$__rate_interval])", "{{instance}}"),
              unit=Unit.PER_S),
        lines("Groups that could not be made durable", "Total.",
              ("sum by (instance) (aliquot_commit_failures_total)", "{{instance}}")),
        lines("Commands that wait", "To be decided.", ("sum(aliquot_writer_queue)", "waiting")),
        lines("Lag of the event loop", "How late the last regular beat was.",
              ("max by (instance) (aliquot_loop_lag_seconds)", "{{instance}}"), unit=Unit.SECONDS),
        lines("Messages of agents", "By kind.", _rate("aliquot_agent_messages_total", "kind"), unit=Unit.PER_S),
        lines("Garbage collector", "Part of the time that its pauses take.",
              ("sum by (instance) (rate(aliquot_gc_pause_seconds_sum[$__rate_interval]))", "{{instance}}"),
              unit=Unit.PART),
        lines("Memory", "Of the coordinators' processes.",
              ("process_resident_memory_bytes and on (instance) aliquot_leading", "{{instance}}"), unit=Unit.BYTES),
        lines("Processor", "Cores that the coordinators use.",
              ("rate(process_cpu_seconds_total[$__rate_interval]) and on (instance) aliquot_leading", "{{instance}}")),
        lines("Who watches", "Streams that are open.", ("sum(aliquot_watchers)", "watchers")),
        lines("Agents that are not connected", "By node.", ("1 - aliquot_agent_connected", "{{node}}")),
    ),
)  # fmt: skip

BOARDS: tuple[Board, ...] = (POOL, TENANT, DEVICES, QUEUE, WASTE, CONTROL)


def panels() -> list[tuple[Board, Panel]]:
    """All of them."""
    return [(board, panel) for board in BOARDS for panel in board.panels]
