"""A store on several nodes: its leader, and the replicas that have everything that was confirmed.

    record      the record in etcd, and its transitions          record_view   a node's knowledge of it, and its changes
    events      what a member handles and requests               peers         a leader's view of the other replicas
    member      the decisions of a node                          etcd          a client for etcd
    etcd_watch  the changes of a key                             etcd_wire     requests and answers of etcd
    driver      carries out what a member asks for               etcd_record   the record as a key of etcd
    registry    where the nodes are

The package ``warren.replication`` carries out the decisions of a member.
"""
