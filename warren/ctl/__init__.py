"""`warren ctl`: a command line over the management HTTP API, of Warren or of RabbitMQ.

The package stands alone: it knows the broker by its API only, and imports nothing else of Warren.

  command_table.py  every command with its group; the typer application; where errors end
  session.py        what a command works with: connection, output, vhost
  shared_options.py the options that all commands have
  config.py         flags, environment and profiles
  client.py         JSON over one kept connection; failures with the broker's reason
  output.py         tables, JSON, CSV, TSV
  words.py          arguments that many commands take, and how texts are read
  completion.py     names for the shell
  exit_codes.py     exit codes
  listing_table.py  the listings: paths, columns, rabbitmqctl's names
  listings.py       how any of them is asked for and shown
  users.py vhosts.py permissions.py policies.py topology.py messages.py transfers.py
  connections.py definitions.py links.py checks.py node.py
                    the commands, a module for each subject
"""
