"""An example or two for the help of each command: what stands after `warren ctl`."""

from __future__ import annotations

from typing import Final

GENERAL: Final = (
    "warren ctl -u http://broker.example:15672 --username ops status",
    "warren ctl -p shop list_queues name messages consumers",
    "warren ctl help set_policy",
)

EXAMPLES: Final[dict[str, tuple[str, ...]]] = {
    # broker
    "status": ("status", "status --formatter json"),
    "overview": ("overview",),
    "cluster_status": ("cluster_status",),
    "memory_breakdown": ("memory_breakdown --unit MB",),
    "version": ("version",),
    "listeners": ("listeners",),
    "environment": ("environment --formatter json",),
    "report": ("report > report.txt",),
    "search": ("search orders --limit 20",),
    "store": ("store --segments",),
    "reactor": ("reactor",),
    "set_cluster_name": ("set_cluster_name shop-production",),
    "set_log_level": ("set_log_level debug",),
    "cluster": ("cluster status", "cluster transfer node2 --within 30"),
    "forget_cluster_node": ("forget_cluster_node node3",),
    "await_online_nodes": ("await_online_nodes 3 --within 60",),
    "drain": ("drain node1",),
    "revive": ("revive node1",),
    "top": ("top --interval 2", "top --once --sort publish"),
    "list_nodes": ("list_nodes name running mem_used",),
    "list_feature_flags": ("list_feature_flags",),
    "list_damage": ("list_damage",),
    "give_up_damage": ("-p shop give_up_damage orders",),
    "help": ("help set_policy", "help topic"),
    # health checks
    "ping": ("ping",),
    "await_startup": ("await_startup --within 60",),
    "check_running": ("check_running",),
    "check_local_alarms": ("check_local_alarms",),
    "check_alarms": ("check_alarms",),
    "check_port_connectivity": ("check_port_connectivity",),
    "check_port_listener": ("check_port_listener 5672",),
    "check_protocol_listener": ("check_protocol_listener amqp",),
    "check_certificate_expiration": ("check_certificate_expiration --within 4 --unit weeks",),
    "check_virtual_hosts": ("check_virtual_hosts",),
    "is_in_service": ("is_in_service",),
    "check_ready_to_serve_clients": ("check_ready_to_serve_clients",),
    "check_below_node_connection_limit": ("check_below_node_connection_limit",),
    "check_if_node_is_quorum_critical": ("check_if_node_is_quorum_critical",),
    "check_quorum_leaders": ("check_quorum_leaders",),
    "check_aliveness": ("-p shop check_aliveness",),
    # users
    "list_users": ("list_users", "list_users user tags --formatter json"),
    "add_user": ("add_user clerk", "add_user ops --tag monitoring < ops.password"),
    "delete_user": ("delete_user clerk",),
    "change_password": ("change_password clerk",),
    "clear_password": ("clear_password clerk",),
    "set_user_tags": ("set_user_tags ops administrator", "set_user_tags clerk"),
    "authenticate_user": ("authenticate_user clerk",),
    "whoami": ("whoami",),
    # vhosts
    "list_vhosts": ("list_vhosts name messages",),
    "add_vhost": ("add_vhost shop --description 'The web shop'",),
    "delete_vhost": ("delete_vhost shop",),
    "trace_on": ("trace_on shop",),
    "trace_off": ("trace_off shop",),
    # permissions
    "list_permissions": ("-p shop list_permissions", "list_permissions --all-vhosts"),
    "list_user_permissions": ("list_user_permissions clerk",),
    "list_topic_permissions": ("-p shop list_topic_permissions",),
    "list_user_topic_permissions": ("list_user_topic_permissions clerk",),
    "set_permissions": (
        "-p shop set_permissions clerk '^$' '^orders' '.*'",
        "-p shop set_permissions ops '.*' '.*' '.*'",
    ),
    "clear_permissions": ("-p shop clear_permissions clerk",),
    "set_topic_permissions": ("-p shop set_topic_permissions clerk amq.topic '^eu[.]' '.*'",),
    "clear_topic_permissions": ("-p shop clear_topic_permissions clerk amq.topic",),
    # limits
    "list_vhost_limits": ("list_vhost_limits --all-vhosts",),
    "list_user_limits": ("list_user_limits",),
    "set_vhost_limits": ("""-p shop set_vhost_limits '{"max-queues": 1000}'""",),
    "clear_vhost_limits": ("-p shop clear_vhost_limits",),
    "set_user_limits": ("""set_user_limits clerk '{"max-connections": 20}'""",),
    "clear_user_limits": ("clear_user_limits clerk max-connections",),
    # policies and parameters
    "list_policies": ("-p shop list_policies",),
    "list_operator_policies": ("-p shop list_operator_policies",),
    "list_parameters": ("-p shop list_parameters",),
    "list_global_parameters": ("list_global_parameters",),
    "set_policy": (
        """-p shop set_policy ttl '^orders' '{"message-ttl": 60000}' --apply-to queues""",
        """-p shop set_policy dlx '^' '{"dead-letter-exchange": "dead"}' --priority 1""",
    ),
    "clear_policy": ("-p shop clear_policy ttl",),
    "set_operator_policy": ("""-p shop set_operator_policy most '^' '{"max-length": 1000000}'""",),
    "clear_operator_policy": ("-p shop clear_operator_policy most",),
    "set_parameter": (
        """set_parameter shovel copy '{"src-uri": "amqp://old", "src-queue": "orders", """
        """"dest-uri": "amqp://", "dest-queue": "orders"}'""",
    ),
    "clear_parameter": ("clear_parameter shovel copy",),
    "set_global_parameter": ("""set_global_parameter cluster_tags '{"region": "eu"}'""",),
    "clear_global_parameter": ("clear_global_parameter cluster_tags",),
    # queues, exchanges and bindings
    "list_queues": (
        "-p shop list_queues name messages_ready messages_unacknowledged consumers",
        "list_queues --all-vhosts --sort messages --reverse --limit 10",
    ),
    "list_exchanges": ("-p shop list_exchanges name type",),
    "list_bindings": ("-p shop list_bindings",),
    "declare_queue": (
        "-p shop declare_queue orders -a x-dead-letter-exchange=dead",
        "-p shop declare_queue events --type stream -a x-max-age=7D",
    ),
    "delete_queue": ("-p shop delete_queue orders --if-empty --if-unused",),
    "purge_queue": ("-p shop purge_queue orders",),
    "pause_queue": ("-p shop pause_queue orders",),
    "resume_queue": ("-p shop resume_queue orders",),
    "declare_exchange": ("-p shop declare_exchange orders --type topic",),
    "delete_exchange": ("-p shop delete_exchange orders --if-unused",),
    "bind": ("-p shop bind orders invoices -k 'eu.#'",),
    "unbind": ("-p shop unbind orders invoices -k 'eu.#'",),
    "route": ("-p shop route orders eu.de.new", "-p shop route orders eu.de.new --path"),
    # messages
    "publish": (
        "-p shop publish -x orders -k eu.new '{\"id\": 7}'",
        "publish -k orders -f order.json --property content_type=application/json",
    ),
    "get": ("-p shop get orders -c 5", "-p shop get orders --ack-mode ack_requeue_false"),
    "peek": ("-p shop peek orders -c 10", "-p shop peek orders --body refund"),
    "move": ("-p shop move orders --to-queue orders.old", "-p shop move orders --to-exchange retry -c 100 --rate 50"),
    "copy": ("-p shop copy orders --to-queue test -c 1000",),
    "redrive": ("-p shop redrive orders.dead", "-p shop redrive orders.dead --body refund -c 10"),
    "list_transfers": ("-p shop list_transfers",),
    "list_drains": ("-p shop list_drains",),
    "release_drain": ("-p shop release_drain orders spark",),
    "delete_drain": ("-p shop delete_drain orders spark",),
    # streams
    "list_super_streams": ("-p shop list_super_streams",),
    "list_stream_groups": ("-p shop list_stream_groups",),
    "add_super_stream": ("-p shop add_super_stream events --partitions 3 --max-age 7D",),
    "delete_super_stream": ("-p shop delete_super_stream events",),
    "reset_stream_group": ("-p shop reset_stream_group events billing first",),
    "delete_stream_group": ("-p shop delete_stream_group events billing",),
    "stream_offset": ("-p shop stream_offset events 1h",),
    # mqtt
    "list_mqtt_sessions": ("list_mqtt_sessions",),
    "list_retained": ("list_retained",),
    "end_mqtt_session": ("end_mqtt_session meter-17",),
    "clear_retained": ("clear_retained 'meters/+/state'",),
    # connections
    "list_connections": ("list_connections user peer_host state",),
    "list_channels": ("list_channels --sort messages_unacknowledged --reverse",),
    "list_consumers": (
        "-p shop list_consumers",
        "-p shop list_consumers queue_name connection number consumer_tag messages_unacknowledged idle_ms",
    ),
    "cancel_consumer": ("-p shop cancel_consumer '127.0.0.1:40112 -> 127.0.0.1:5672' 1 ctag1.a4 'it hangs'",),
    "close_connection": ("close_connection '127.0.0.1:40112 -> 127.0.0.1:5672' 'maintenance'",),
    "close_all_connections": ("-p shop close_all_connections 'maintenance'",),
    "close_all_user_connections": ("close_all_user_connections clerk 'moved'",),
    # definitions, backup
    "export_definitions": ("export_definitions definitions.json", "-p shop export_definitions shop.json"),
    "import_definitions": ("import_definitions definitions.json --dry-run", "import_definitions definitions.json"),
    "backup": ("backup /srv/backups/orders", "backup /srv/backups/orders --incremental --keep 14 --rate 20MB"),
    # links
    "list_shovels": ("list_shovels",),
    "federation_status": ("federation_status",),
    "delete_shovel": ("-p shop delete_shovel copy",),
    "restart_shovel": ("-p shop restart_shovel copy",),
    "restart_federation_link": ("restart_federation_link 3f6a7c",),
    "release_links": ("release_links",),
    "list_lake_tables": ("list_lake_tables",),
    "delete_lake_table": ("-p shop delete_lake_table events",),
    "restart_lake_table": ("-p shop restart_lake_table events",),
}


def examples_of(name: str) -> list[str]:
    """Return whole lines for the shell that show a command."""
    return [f"warren ctl {line}" for line in EXAMPLES[name]]
