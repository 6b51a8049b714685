"""A store on several nodes: who leads it, and which replicas have everything that was confirmed.

    record      the record in etcd, and its transitions          record_view   what a node knows of it, and its changes
    events      what a member is told, and what it asks for      peers         a leader's view of the other replicas
    member      what a node decides                              etcd          a client for etcd
    etcd_watch  the changes of a key                             etcd_wire     requests and answers of etcd

Nothing starts these yet: a broker is one node.
"""
