"""The commands that come with the CLI, by what they are for, in the order in which help lists them."""

from aliquot.cli._command import Builtin

GROUPS = {
    "a pool of your own, and who you are": (
        Builtin(
            "up",
            "start a pool on this machine: a coordinator and agents on simulated or real GPUs",
            "commands.pools:UP",
        ),
        Builtin("down", "stop the pool that `up` started", "commands.pools"),
        Builtin("demo", "see the product on simulated GPUs and real processes, in about a minute", "demo.command"),
        Builtin("console", "open the pool in a browser, logged in as you", "commands.console"),
        Builtin(
            "login",
            "keep a token for a pool, so that every command and program of yours has it",
            "commands.logging_in:LOGIN",
        ),
        Builtin("logout", "forget the token for a pool", "commands.logging_in"),
        Builtin("whoami", "who you are to the pool, and what you may do", "commands.logging_in"),
        Builtin("completion", "what makes bash, zsh or fish complete these words", "commands.completing"),
    ),
    "use": (
        Builtin("run", "start a program on this node inside a lease of its own", "commands.running"),
        Builtin("logs", "what a program has written that `run --detach` started", "commands.detaching"),
        Builtin("exec", "start a program on this node inside a standing lease", "commands.running"),
        Builtin("alloc", "ask for a lease and leave it standing", "commands.allocating"),
        Builtin("release", "end leases", "commands.allocating"),
        Builtin("extend", "let a lease run longer than its time limit", "commands.extending"),
        Builtin("ack", "say that the program of an elastic lease has adapted to its change", "commands.allocating"),
        Builtin("ls", "list leases", "commands.listing"),
        Builtin("get", "show one lease", "commands.listing"),
        Builtin("why", "say where a request would go, or why it or a lease has to wait", "commands.explaining"),
        Builtin("fits", "say which nodes could take a request now", "commands.explaining"),
        Builtin("top", "watch devices and leases on a live screen", "commands.live"),
        Builtin("watch", "follow changes of leases (and nodes) as they become durable", "commands.watching"),
        Builtin("status", "totals of the pool, its models and tenants", "commands.listing"),
        Builtin("forecast", "demand as it is expected to be", "commands.forecasting"),
        Builtin("waste", "who holds what for nothing", "commands.wasting"),
    ),
    "operate": (
        Builtin("nodes", "list nodes, or show one with its devices", "commands.nodes"),
        Builtin("node", "who is a node, and what it holds for nobody: invite, disenrol, settle", "commands.joining"),
        Builtin("cordon", "no new leases on a node; what runs stays", "commands.nodes"),
        Builtin("uncordon", "place leases on a node again", "commands.nodes"),
        Builtin("drain", "cordon a node and end what runs there, with its grace", "commands.nodes"),
        Builtin("forget", "remove a node that holds nothing", "commands.nodes"),
        Builtin("declare", "declare the nodes of a file", "commands.declaring"),
        Builtin("health", "what is wrong with cards; with a number, one incident's story", "commands.caring"),
        Builtin("device", "sick cards: quarantine, verify, return", "commands.caring"),
        Builtin("maintenance", "maintenance windows of nodes: add, ls, rm", "commands.maintaining"),
        Builtin("supply", "nodes that come when they are missed: advice, shapes, orders, run", "supply.command:SUPPLY"),
        Builtin("set-aside", "show or retry work on which deciding failed", "commands.setting_aside"),
        Builtin(
            "support-bundle",
            "a file with what others need to see what is wrong, without secrets",
            "commands.supporting:SUPPORT_BUNDLE",
        ),
        Builtin("exempt", "let idleness of a lease have no consequences for a while", "commands.wasting"),
        Builtin("doctor", "check this node for everything the tiers need, and prove each by trying to exceed it"),
        Builtin("journal", "look at a coordinator's journal: verify, dump, backup, restore, repair"),
        Builtin("plan", "what would happen with these requests on that pool, under any policy"),
        Builtin("watch-use", "how much cards are used, by any Prometheus that scrapes dcgm-exporter; needs no pool"),
        Builtin("notify", "tell people and programs of idle leases, and people of budgets"),
        Builtin("kube", "check a Kubernetes cluster, or what would become of a manifest there"),
        Builtin("autoscale", "have Kubernetes scale a Deployment by what its pods use of their GPUs, or by what waits"),
    ),
    "account": (
        Builtin("invoice", "what a tenant owes for a period", "commands.billing"),
        Builtin("credit", "post money that a tenant paid", "commands.billing"),
        Builtin("correct", "correct a wrong charge", "commands.billing"),
        Builtin("close-books", "sum up old days of the ledger", "commands.billing"),
    ),
    "administer": (
        Builtin(
            "access",
            "who may do what: grant, revoke, ls, token, audit, denials, authority, bootstrap",
            "commands.access:ACCESS",
        ),
        Builtin("apply", "declare the pools, tenants, queues and prices of a file", "commands.tenancy"),
        Builtin("withdraw", "withdraw a declaration that is not in use", "commands.tenancy"),
        Builtin("tenants", "what tenants may use, and what they use", "commands.tenancy"),
        Builtin("queues", "the tree of queues, and what waits in them", "commands.tenancy"),
        Builtin("quota", "change what a tenant or queue may use, also by time of day", "commands.quotas"),
        Builtin("forgive", "hold leases that ended as OVER_LIMIT no longer against a tenant", "commands.tenancy"),
    ),
}
"""Those without a place are brought by our other roots, and stand here for help alone: to ask them would import them.
"""
ALL = tuple(command for group in GROUPS.values() for command in group)
BUILTINS = tuple(command for command in ALL if command.place)
BY_ENTRY_POINT = tuple(command for command in ALL if not command.place)
