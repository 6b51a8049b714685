"""Looking into the message store of a stopped broker: what is there, what is wrong, and what can be saved."""
