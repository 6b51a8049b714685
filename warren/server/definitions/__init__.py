"""Files of definitions: topology, users and policies, read, compared with what there is, and imported."""
