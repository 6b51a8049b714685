"""Looking into the message store of a stopped broker: its content, its damage, and the messages that can be saved."""
