"""Policies, operator policies and runtime parameters."""

from __future__ import annotations

import json
from typing import Any, ClassVar, Final

import msgspec

from warren.engine_view.engine_view import EngineView
from warren.engine_view.parameters import (
    OPERATOR_POLICY_COMPONENT,
    VHOST_LIMITS_COMPONENT,
    VHOST_LIMITS_NAME,
    Parameter,
    PolicyRow,
)
from warren.mgmt_plugin.http.server import Response
from warren.mgmt_plugin.listing import Described
from warren.mgmt_plugin.names import cluster_id, visible_vhost_names
from warren.mgmt_plugin.routes import (
    Access,
    Call,
    Handlers,
    Route,
    bad_request,
    convert,
    created,
    not_authorised,
    not_found,
)
from warren.vhosts.metadata import (
    GlobalParameterDelete,
    GlobalParameterPut,
    ParameterDelete,
    ParameterPut,
    PolicyDelete,
    PolicyPut,
)

CLUSTER_ID: Final = "internal_cluster_id"


class PolicyBody(msgspec.Struct):
    """A policy."""

    pattern: str
    definition: dict[str, Any]
    priority: int = 0
    apply_to: str = msgspec.field(default="all", name="apply-to")


class ParameterBody(msgspec.Struct):
    """The value of a parameter."""

    value: Any


class ClusterName(msgspec.Struct):
    """The name of the broker."""

    name: str


# --- policies ---------------------------------------------------------------------------------------------------------


def describe_policy(policy: PolicyRow) -> Described:
    """Return a policy, or an operator policy."""
    put = policy.put
    return {
        "vhost": put.vhost,
        "name": put.name,
        "pattern": put.pattern,
        "apply-to": put.apply_to,
        "definition": policy.definition,
        "priority": put.priority,
    }


# --- parameters -------------------------------------------------------------------------------------------------------


def describe_parameter(parameter: Parameter) -> Described:
    """Return a parameter; passwords in URIs are for those only who may change them."""
    return {
        "vhost": parameter.vhost,
        "component": parameter.component,
        "name": parameter.name,
        "value": parameter.value,
    }


def parameter_rows(call: Call, view: EngineView) -> list[Described]:
    """Return the parameters that the user may see, in the vhost and of the component of the path."""
    component = call.params.get("component")
    found: list[Described] = []
    by_vhost: dict[str, list[Parameter]] = {}
    for each in view.parameters.of(call.params.get("vhost"), component):
        by_vhost.setdefault(each.vhost, []).append(each)
    for vhost in view.vhosts.rows(visible_vhost_names(call)):
        name = vhost.record.name
        if not (call.operator.is_administrator or call.operator.may_enter(name)):
            continue
        found += [describe_parameter(each) for each in by_vhost.get(name, [])]
        if vhost.limits and component in (None, VHOST_LIMITS_COMPONENT):
            limits = {"component": VHOST_LIMITS_COMPONENT, "name": VHOST_LIMITS_NAME, "value": vhost.limits}
            found.append({"vhost": name, **limits})
        if component in (None, OPERATOR_POLICY_COMPONENT):
            for policy in view.policies.of(name, operator=True):
                value = describe_policy(policy)
                own = {"vhost": value.pop("vhost"), "component": OPERATOR_POLICY_COMPONENT, "name": value.pop("name")}
                found.append({**own, "value": value})
    return found


_ADMIN: Final = Access.ADMINISTRATOR
_MAKE: Final = Access.POLICYMAKER
_P: Final = "/api/policies/{vhost}/{name}"
_O: Final = "/api/operator-policies/{vhost}/{name}"
_R: Final = "/api/parameters/{component}/{vhost}/{name}"
_G: Final = "/api/global-parameters/{name}"


class PolicyHandlers(Handlers):
    """Handlers of policies and operator policies."""

    def __init__(self, view: EngineView) -> None:
        self._view = view

    def _list(self, call: Call, *, operator: bool) -> list[Described]:
        found: list[Described] = []
        for vhost in visible_vhost_names(call):
            found += map(describe_policy, self._view.policies.of(vhost, operator=operator))
        return found

    def _the_policy(self, call: Call, *, operator: bool) -> PolicyRow:
        policy = self._view.policies.maybe(call.params["vhost"], call.params["name"], operator=operator)
        if policy is None:
            raise not_found()
        return policy

    async def _put(self, call: Call, *, operator: bool) -> Response:
        given = await call.json()
        if isinstance(given, dict) and isinstance(given.get("priority", 0), bool | float):
            raise bad_request(f"Validation failed\n\npriority should be a number, actually was {given['priority']}\n")
        body = convert(given, PolicyBody)
        vhost, name = call.params["vhost"], call.params["name"]
        new = self._view.policies.maybe(vhost, name, operator=operator) is None
        definition = json.dumps(body.definition)
        put = PolicyPut(vhost, name, body.pattern, body.apply_to, body.priority, definition, operator)
        await call.administer(put, validates=True)
        return created(new=new)

    async def list_policies(self, call: Call) -> list[Described]:
        return self._list(call, operator=False)

    async def list_operator_policies(self, call: Call) -> list[Described]:
        return self._list(call, operator=True)

    async def show_policy(self, call: Call) -> Described:
        return describe_policy(self._the_policy(call, operator=False))

    async def show_operator_policy(self, call: Call) -> Described:
        return describe_policy(self._the_policy(call, operator=True))

    async def put_policy(self, call: Call) -> Response:
        return await self._put(call, operator=False)

    async def put_operator_policy(self, call: Call) -> Response:
        return await self._put(call, operator=True)

    async def delete_policy(self, call: Call) -> None:
        put = self._the_policy(call, operator=False).put
        await call.administer(PolicyDelete(put.vhost, put.name))

    async def delete_operator_policy(self, call: Call) -> None:
        put = self._the_policy(call, operator=True).put
        await call.administer(PolicyDelete(put.vhost, put.name, operator=True))

    ROUTES: ClassVar = (
        Route("GET", "/api/policies", Access.USER, list_policies, "Policies of all vhosts"),
        Route("GET", "/api/policies/{vhost}", Access.VHOST_VISIBLE, list_policies, "Policies of a vhost"),
        Route("GET", _P, Access.VHOST_VISIBLE, show_policy, "A policy"),
        Route("PUT", _P, _MAKE, put_policy, "Set a policy", PolicyBody),
        Route("DELETE", _P, _MAKE, delete_policy, "Delete a policy"),
        Route("GET", "/api/operator-policies", Access.USER, list_operator_policies, "Operator policies of all vhosts"),
        Route(
            "GET", "/api/operator-policies/{vhost}", Access.VHOST_VISIBLE, list_operator_policies, "Those of a vhost"
        ),
        Route("GET", _O, Access.VHOST_VISIBLE, show_operator_policy, "An operator policy"),
        Route("PUT", _O, _ADMIN, put_operator_policy, "Set an operator policy", PolicyBody),
        Route("DELETE", _O, _ADMIN, delete_operator_policy, "Delete an operator policy"),
    )


class ParameterHandlers(Handlers):
    """Handlers of parameters, of those of the whole broker too, and of its name."""

    def __init__(self, view: EngineView) -> None:
        self._view = view
        self._parameters = view.parameters

    async def list_parameters(self, call: Call) -> list[Described]:
        return parameter_rows(call, self._view)

    def _the_parameter(self, call: Call) -> Parameter:
        params = call.params
        parameter = self._parameters.maybe(params["vhost"], params["component"], params["name"])
        if parameter is None:
            raise not_found()
        return parameter

    async def show_parameter(self, call: Call) -> Described:
        return describe_parameter(self._the_parameter(call))

    def _check_component(self, call: Call) -> None:
        """Refuse components that only administrators set, by this route as by their own.

        Raises:
            HttpError: 401.
        """
        own = call.params["component"] in (VHOST_LIMITS_COMPONENT, OPERATOR_POLICY_COMPONENT)
        if own and not call.operator.is_administrator:
            raise not_authorised(Access.ADMINISTRATOR.value)

    async def put_parameter(self, call: Call) -> Response:
        self._check_component(call)
        body = await call.body(ParameterBody)
        params = call.params
        book = self._parameters
        new = book.maybe(params["vhost"], params["component"], params["name"]) is None
        put = ParameterPut(params["vhost"], params["component"], params["name"], json.dumps(body.value))
        await call.administer(put, validates=True)
        return created(new=new)

    async def delete_parameter(self, call: Call) -> None:
        self._check_component(call)
        params = call.params
        if params["component"] not in (VHOST_LIMITS_COMPONENT, OPERATOR_POLICY_COMPONENT):
            self._the_parameter(call)
        await call.administer(ParameterDelete(params["vhost"], params["component"], params["name"]), validates=True)

    async def list_global_parameters(self, call: Call) -> list[Described]:
        found = [{"name": each.name, "value": each.value} for each in self._parameters.all_global()]
        return sorted([*found, self._cluster_id()], key=lambda each: str(each["name"]))

    def _cluster_id(self) -> Described:
        """Return the global parameter that the broker itself has set, for good."""
        return {"name": CLUSTER_ID, "value": cluster_id(self._view)}

    async def show_global_parameter(self, call: Call) -> Described:
        if call.params["name"] == CLUSTER_ID:
            return self._cluster_id()
        found = self._parameters.maybe_global(call.params["name"])
        if found is None:
            raise not_found()
        return {"name": found.name, "value": found.value}

    async def put_global_parameter(self, call: Call) -> Response:
        body = await call.body(ParameterBody)
        name = call.params["name"]
        if name == CLUSTER_ID:
            raise bad_request(f"{CLUSTER_ID} cannot be changed")
        new = self._parameters.maybe_global(name) is None
        await call.administer(GlobalParameterPut(name, json.dumps(body.value)), validates=True)
        return created(new=new)

    async def delete_global_parameter(self, call: Call) -> None:
        if self._parameters.maybe_global(call.params["name"]) is None:
            raise not_found()
        await call.administer(GlobalParameterDelete(call.params["name"]))

    async def show_cluster_name(self, call: Call) -> Described:
        return {"name": self._view.cluster_name()}

    async def put_cluster_name(self, call: Call) -> None:
        body = await call.body(ClusterName)
        await call.administer(GlobalParameterPut("cluster_name", json.dumps(body.name)))

    ROUTES: ClassVar = (
        Route("GET", "/api/parameters", _MAKE, list_parameters, "Parameters of all vhosts"),
        Route("GET", "/api/parameters/{component}", _MAKE, list_parameters, "Parameters of a component"),
        Route("GET", "/api/parameters/{component}/{vhost}", _MAKE, list_parameters, "Those of a vhost"),
        Route("GET", _R, _MAKE, show_parameter, "A parameter"),
        Route("PUT", _R, _MAKE, put_parameter, "Set a parameter", ParameterBody),
        Route("DELETE", _R, _MAKE, delete_parameter, "Delete a parameter"),
        Route("GET", "/api/global-parameters", _MAKE, list_global_parameters, "Global parameters"),
        Route("GET", _G, _MAKE, show_global_parameter, "A global parameter"),
        Route("PUT", _G, _ADMIN, put_global_parameter, "Set a global parameter", ParameterBody),
        Route("DELETE", _G, _ADMIN, delete_global_parameter, "Delete a global parameter"),
        Route("GET", "/api/cluster-name", Access.USER, show_cluster_name, "The cluster name"),
        Route("PUT", "/api/cluster-name", _ADMIN, put_cluster_name, "Set the cluster name", ClusterName),
    )
