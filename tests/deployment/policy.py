"""The rules for every pod of ours: a list of those that one breaks."""

PODS = {"Deployment", "StatefulSet", "DaemonSet", "Job", "Pod", "CronJob"}


def pod_of(resource):
    """Return a resource's pod, or None."""
    if resource["kind"] not in PODS:
        return None
    return resource["spec"] if resource["kind"] == "Pod" else template_of(resource)["spec"]


def template_of(resource):
    """Return the template of a resource's pods, or None."""
    spec = resource["spec"]["jobTemplate"]["spec"] if resource["kind"] == "CronJob" else resource.get("spec", {})
    return spec.get("template") if resource["kind"] in PODS else None


def breaches(resource):
    """Return what is wrong with a resource, in words."""
    pod = pod_of(resource)
    if pod is None:
        return []
    name = resource["metadata"]["name"]
    secured = pod.get("securityContext", {})
    wrong = []
    if secured.get("runAsNonRoot") is not True or secured.get("runAsUser", 0) == 0:
        wrong.append("may run as root")
    if secured.get("seccompProfile", {}).get("type") != "RuntimeDefault":
        wrong.append("no seccomp profile")
    if pod.get("automountServiceAccountToken") is not False:
        wrong.append("a service account's token is mounted")
    if any(pod.get(word) for word in ("hostNetwork", "hostPID", "hostIPC")):
        wrong.append("shares a namespace with its host")
    if any("hostPath" in volume for volume in pod.get("volumes", [])):
        wrong.append("mounts its host's files")
    for container in [*pod["containers"], *pod.get("initContainers", [])]:
        wrong += _of_container(container)
    return [f"{resource['kind']} {name}: {each}" for each in wrong]


def _of_container(container):
    secured = container.get("securityContext", {})
    _, _, tag = container["image"].partition(":")
    limits = container.get("resources", {}).get("limits", {})
    requests = container.get("resources", {}).get("requests", {})
    checks = {
        "its image has no fixed tag": "@sha256:" not in container["image"] and tag in ("", "latest"),
        "its root file system can be written": secured.get("readOnlyRootFilesystem") is not True,
        "it may gain privileges": secured.get("allowPrivilegeEscalation") is not False,
        "it keeps capabilities": secured.get("capabilities", {}).get("drop") != ["ALL"]
        or bool(secured.get("capabilities", {}).get("add")),
        "it is privileged": bool(secured.get("privileged")),
        "it may run as root": secured.get("runAsUser", 1) == 0 or secured.get("runAsNonRoot") is False,
        "it has no limits": not {"cpu", "memory"} <= limits.keys(),
        "it has no requests": not {"cpu", "memory"} <= requests.keys(),
    }
    return [said for said, broken in checks.items() if broken]
