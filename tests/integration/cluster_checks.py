"""Checks of cluster files that need no cloud. Every function returns the problems that it finds, as
sentences.
"""

from __future__ import annotations

import copy
import importlib
import json
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema

from orchestrator.catalog.accelerators import find
from orchestrator.cluster.notices import NOTICE_FILE

LONGEST_DOWNLOAD_S = 1500.0  # 140 GB of weights at 100 MB/s
GPU = "nvidia.com/gpu"
# metadata by which GCP's image installs the GPU's driver when it first boots
DRIVER_LATER = "install-nvidia-driver"
# parameter of a virtual machine -> the values that Azure knows
AZURE_VALUES = {"priority": ["Regular", "Spot"], "evictionPolicy": ["Delete", "Deallocate"]}
SUBMISSION_MODES = ("K8sJobMode", "HTTPMode", "InteractiveMode", "SidecarMode")


def ray_up(config: dict[str, Any]) -> list[str]:
    """Problems of a file for ``ray up``: first Ray's own check, then what Ray does not check, by the
    cloud's own description of a node.
    """
    from ray._private.label_utils import validate_node_label_syntax
    from ray.autoscaler._private.util import prepare_config, validate_config

    try:
        prepared = prepare_config(copy.deepcopy(config))
        validate_config(prepared)
    except Exception as error:
        return [f"Ray refuses it: {getattr(error, 'message', error)}"]
    problems = []
    check = {"aws": aws_node, "gcp": gcp_node, "azure": azure_node}.get(config["provider"]["type"])
    for name, kind in config["available_node_types"].items():
        try:
            validate_node_label_syntax(kind.get("labels", {}))
        except ValueError as error:
            problems.append(f"{name}: {error}")
        if check:
            of_node = [
                *check(kind["node_config"]),
                *_gpu_group(kind, kind.get("idle_timeout_s", 0)),
            ]
            file_mounts = config.get("file_mounts", {})
            if kind["resources"].get("GPU") and not _may_write(kind["node_config"], file_mounts):
                of_node.append("its nodes have no credentials to write results with")
            problems += [f"{name}: {problem}" for problem in of_node]
    nodes = {name: kind["node_config"] for name, kind in config["available_node_types"].items()}
    has_roles = any("IamInstanceProfile" in node for node in nodes.values())
    if has_roles and "IamInstanceProfile" not in nodes[config["head_node_type"]]:
        problems.append(
            "the head has Ray's own role, which may pass no other role on to the nodes that it "
            "starts"
        )
    first_command = "".join(prepared["initialization_commands"][:1])
    if "until nvidia-smi" not in first_command:
        problems += [
            f"{name}: its containers would start before its GPUs have a driver"
            for name, node in nodes.items()
            if _gets_driver_later(node)
        ]
    commands = [
        line for key, lines in prepared.items() if key.endswith("_commands") for line in lines
    ]
    problems += [
        f"a nightly Ray is installed: {line}"
        for line in commands
        if "dev0" in line or "nightly" in line
    ]
    return problems + [problem for line in commands for problem in shell(line)]


def _gpu_group(kind: dict[str, Any], idle_s: float) -> Iterator[str]:
    labels = kind.get("labels", {})
    if not kind.get("resources", {}).get("GPU"):
        return
    yield from accelerator(labels.get("accelerator", "no label accelerator"))
    if labels.get("market") not in ("spot", "ondemand"):
        yield f"its market is {labels.get('market')!r}"
    if idle_s < LONGEST_DOWNLOAD_S:
        yield (
            f"a node that is idle for {idle_s:g} s leaves, and weights may take "
            f"{LONGEST_DOWNLOAD_S:g} s to come"
        )


def _gets_driver_later(node: dict[str, Any]) -> bool:
    items = node.get("metadata", {}).get("items", ())
    return any(item["key"] == DRIVER_LATER for item in items)


def _may_write(node: dict[str, Any], file_mounts: dict[str, str]) -> bool:
    """Whether nodes may write results: they have a role of their own (Ray gives heads one), or keys
    of S3.
    """
    return bool(
        node.get("IamInstanceProfile")
        or node.get("serviceAccounts")
        or "/home/ray/.aws/credentials" in file_mounts
    )


def accelerator(name: str) -> list[str]:
    """The problem of a name that is not in the catalogue: no experiment's ``hardware`` chooses it."""
    return [] if find(name) else [f"accelerator {name!r} is not in the catalogue"]


def aws_node(node: dict[str, Any]) -> list[str]:
    """Problems by botocore's description of RunInstances. botocore checks keys and types itself, but
    no enumerations.
    """
    from botocore.validate import ParamValidator

    model = _run_instances()
    report = ParamValidator().validate({"MinCount": 1, "MaxCount": 1, **node}, model)
    return [*report.generate_report().splitlines(), *_enumerations(node, model)]


def _enumerations(value: Any, shape: Any) -> Iterator[str]:
    if isinstance(value, dict) and shape.type_name == "structure":
        for key in value.keys() & shape.members.keys():
            yield from _enumerations(value[key], shape.members[key])
    elif isinstance(value, list) and shape.type_name == "list":
        for element in value:
            yield from _enumerations(element, shape.member)
    elif getattr(shape, "enum", None) and value not in shape.enum:
        yield f"{value!r} is no {shape.name}"


@cache
def _run_instances() -> Any:
    import botocore.session

    return (
        botocore.session.get_session()
        .get_service_model("ec2")
        .operation_model("RunInstances")
        .input_shape
    )


def gcp_node(node: dict[str, Any]) -> list[str]:
    """Problems by the description of an Instance in Google's discovery document of Compute Engine."""
    schemas = _compute_engine()
    kinds = {"string": str, "integer": int, "boolean": bool, "number": (int, float)}

    def walk(value: Any, schema: dict[str, Any], at: str) -> Iterator[str]:
        schema = schemas[schema["$ref"]] if "$ref" in schema else schema
        kind = schema.get("type")
        if kind == "object":
            if not isinstance(value, dict):
                yield f"{at} is {value!r}, not an object"
                return
            for key, inner in value.items():
                below = schema.get("properties", {}).get(key) or schema.get("additionalProperties")
                yield from (
                    walk(inner, below, f"{at}.{key}") if below else [f"{at}.{key} is unknown"]
                )
        elif kind == "array":
            if not isinstance(value, list):
                yield f"{at} is {value!r}, not a list"
                return
            for number, inner in enumerate(value):
                yield from walk(inner, schema["items"], f"{at}[{number}]")
        elif kind in kinds and (
            not isinstance(value, kinds[kind]) or (kind != "boolean" and value is True)
        ):
            yield f"{at} is {value!r}, not a {kind}"
        elif "enum" in schema and value not in schema["enum"]:
            yield f"{at} is {value!r}, not one of {schema['enum']}"

    return list(walk(node, {"$ref": "Instance"}, "node_config"))


@cache
def _compute_engine() -> dict[str, Any]:
    folder = resources.files("googleapiclient") / "discovery_cache" / "documents"
    schemas: dict[str, Any] = json.loads((folder / "compute.v1.json").read_text())["schemas"]
    return schemas


def azure_node(node: dict[str, Any]) -> list[str]:
    """Problems by the parameters and types of the template that Ray deploys. It names no
    enumerations.
    """
    import ray

    path = resources.files(ray) / "autoscaler" / "_private" / "_azure" / "azure-vm-template.json"
    parameters = json.loads(path.read_text())["parameters"]
    parameters["availability_zone"] = {"type": "string"}
    kinds = {
        "string": str,
        "int": int,
        "bool": bool,
        "object": dict,
        "array": list,
        "securestring": str,
    }
    problems = [
        f"{key} is unknown beside azure_arm_parameters"
        for key in node
        if key != "azure_arm_parameters"
    ]
    for key, value in node.get("azure_arm_parameters", {}).items():
        if key not in parameters:
            problems.append(f"azure_arm_parameters.{key} is unknown")
        elif not isinstance(value, kinds[parameters[key]["type"].lower()]):
            problems.append(
                f"azure_arm_parameters.{key} is {value!r}, not a {parameters[key]['type']}"
            )
        elif value not in AZURE_VALUES.get(key, [value]):
            problems.append(
                f"azure_arm_parameters.{key} is {value!r}, not one of {AZURE_VALUES[key]}"
            )
    return problems


def pods(document: dict[str, Any]) -> list[str]:
    """Problems by Kubernetes' own models: of each pod template of a KubeRay document, or of a document
    of Kubernetes itself.
    """
    if document["apiVersion"] in ("v1", "networking.k8s.io/v1"):
        return list(_kubernetes(document, f"V1{document['kind']}", document["kind"]))
    problems = []
    for name, group in groups(document):
        problems += _kubernetes(group["template"], "V1PodTemplateSpec", f"{name}.template")
    return problems


def _kubernetes(value: Any, kind: str, at: str) -> Iterator[str]:
    plain = {
        "str": str,
        "int": int,
        "bool": bool,
        "float": (int, float),
        "object": object,
        "datetime": str,
    }
    if inner := re.fullmatch(r"([Ll]ist|[Dd]ict)[\[(](?:str, ?)?(.+)[\])]", kind):
        container = list if inner[1].lower() == "list" else dict
        if not isinstance(value, container):
            yield f"{at} is {value!r}, not a {inner[1]}"
            return
        for key, below in value.items() if container is dict else enumerate(value):
            yield from _kubernetes(below, inner[2], f"{at}.{key}")
    elif kind in plain:
        if not isinstance(value, plain[kind]) or (kind != "bool" and isinstance(value, bool)):
            yield f"{at} is {value!r}, not a {kind}"
    elif not isinstance(value, dict):
        yield f"{at} is {value!r}, not a {kind}"
    else:
        model = getattr(importlib.import_module("kubernetes.client"), kind)
        kinds = {model.attribute_map[name]: inner for name, inner in model.openapi_types.items()}
        for key, below in value.items():
            yield from (
                _kubernetes(below, kinds[key], f"{at}.{key}")
                if key in kinds
                else [f"{at}.{key} is unknown"]
            )


def groups(document: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    spec = document["spec"].get("rayClusterSpec", document["spec"])
    return [
        ("head", spec["headGroupSpec"]),
        *((group["groupName"], group) for group in spec["workerGroupSpecs"]),
    ]


def kuberay_rules(document: dict[str, Any]) -> list[str]:
    """Problems that KubeRay's schema does not show: what its operator refuses, and what this program
    cannot start with.
    """
    problems = []
    spec = document["spec"]
    if document["kind"] == "RayJob":
        if spec.get("submissionMode", "K8sJobMode") not in SUBMISSION_MODES:
            problems.append(
                f"submissionMode {spec['submissionMode']!r} is none of {SUBMISSION_MODES}"
            )
        if spec.get("ttlSecondsAfterFinished") and not spec.get("shutdownAfterJobFinishes"):
            problems.append("ttlSecondsAfterFinished needs shutdownAfterJobFinishes")
    cluster = spec.get("rayClusterSpec", spec)
    if cluster.get("autoscalerOptions", {}).get("version") != "v2":
        problems.append(
            "autoscalerOptions.version is not v2: labels, priority and idleTimeoutSeconds of "
            "groups need it"
        )
    head_account = cluster["headGroupSpec"]["template"]["spec"].get("serviceAccountName")
    for name, group in groups(document):
        container = group["template"]["spec"]["containers"][0]
        gpus = int(container["resources"].get("limits", {}).get(GPU, 0))
        like_ray_up = {"resources": {"GPU": gpus}, "labels": group.get("labels", {})}
        of_group = list(_gpu_group(like_ray_up, group.get("idleTimeoutSeconds", 0)))
        mounted = {mount["name"] for mount in container.get("volumeMounts", ())}
        volumes = {volume["name"] for volume in group["template"]["spec"].get("volumes", ())}
        of_group += [
            f"volume {volume} is mounted and not there" for volume in sorted(mounted - volumes)
        ]
        problems += [f"{name}: {problem}" for problem in of_group]
        account = group["template"]["spec"].get("serviceAccountName")
        if name != "head" and account == head_account:
            problems.append(f"{name}: engines may start pods, by the head's service account")
        if name == "head" and (gpus or group["rayStartParams"].get("num-gpus") != "0"):
            problems.append("the head may be given GPUs, and goes down with what runs on them")
        variables = {variable["name"] for variable in container.get("env", ())}
        if gpus and NOTICE_FILE not in variables:
            problems.append(f"{name}: pods that are taken back are found out when they are gone")
    return problems


def kuberay_schema(document: dict[str, Any]) -> list[str]:
    """Problems by KubeRay's custom resource definition, with every key that it does not name as a
    problem.
    """
    if document["apiVersion"] != "ray.io/v1":
        return [f"apiVersion is {document['apiVersion']!r}, not ray.io/v1"]
    schemas = json.loads((Path(__file__).parent / "kuberay" / "schemas.json").read_text())
    schema = _strict(schemas[document["kind"]] | {"$defs": schemas["$defs"]})
    paths = (
        ("/".join(map(str, error.absolute_path)), error.message)
        for error in jsonschema.Draft202012Validator(schema).iter_errors(document)
    )
    return [f"{path}: {message[:300]}" for path, message in paths]


def _strict(schema: Any) -> Any:
    """A JSON schema whose objects allow no keys but the named ones."""
    if isinstance(schema, list):
        return [_strict(element) for element in schema]
    if not isinstance(schema, dict):
        return schema
    strict = {key: _strict(value) for key, value in schema.items()}
    if (
        isinstance(strict.get("properties"), dict)
        and "type" in strict
        and not strict.get("x-kubernetes-preserve-unknown-fields")
    ):
        strict.setdefault("additionalProperties", False)
    if strict.pop("x-kubernetes-int-or-string", False):
        strict.pop("type", None)
        strict["anyOf"] = [{"type": "integer"}, {"type": "string"}]
    return strict


def shell(script: str) -> list[str]:
    """The problem of a script that bash cannot parse."""
    completed = subprocess.run(
        ["bash", "-n"], input=script, capture_output=True, text=True, check=False
    )
    return [f"bash: {completed.stderr.strip()}"] if completed.returncode else []
