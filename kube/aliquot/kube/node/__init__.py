"""Kubernetes on the node: what stands between a kubelet, its containers' cgroups and the node's agent.

    device_plugin, registration   the resource `aliquot.dev/gpu-percent`, served to the kubelet
    advertising                   the resource `aliquot.dev/gpu-memory-mib`, patched into the Node
    binder                        ties a pod's assignment, its cgroup and its lease's slices together
    injection                     what its containers find: variables, the folder of their tier
    releasing                     gives back leases whose pods have gone

`core` decides, and `identity` by what the agent says; `api_server` asks an API server, `objects` are its answers;
`service` wires it all. docs/kubernetes-node.md describes it.
"""
