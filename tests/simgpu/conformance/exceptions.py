"""The rules that do not hold under rota with some kind of memory: files of groups, each with why."""
import tomllib


def listed(path, place):
    """Those that do not hold on simgpu ("simgpu") or on a GPU ("gpu"): a group without `on` names both."""
    groups = tomllib.loads(path.read_text()).values()
    rules = [rule for group in groups if group.get("on", place) == place for rule in group["rules"]]
    assert len(rules) == len(set(rules)), f"{path.name} lists a rule twice"
    return rules
