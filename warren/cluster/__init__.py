"""A store on several nodes: its leader, and the replicas that have everything that was confirmed.

    record         the record in etcd, and its transitions
    events         what a member handles and requests
    member         the decisions of a node. Its parts:
      record_view    its knowledge of the record, and its changes of it
      own_directory  how far its log goes, and whether its directory is a restored copy
      following      whom it follows, and what it has promised
      candidacy      how it comes to lead, after a pre_vote
      leadership     an epoch that it leads, with peers (the other replicas), handover, renewal (of the record),
                     asked_change (of an administrator) and disk_watch (when it gives way)
      actions        what one event asks for
      timers         how long things may take
    driver         carries out what a member asks for
    etcd           a client for etcd, with etcd_watch, etcd_wire, and etcd_record: the record as a key of etcd
    registry       where the nodes are

The package ``warren.replication`` carries out the decisions of a member.
"""
