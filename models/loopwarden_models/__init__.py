"""The wire contract of Loopwarden: messages, hashes, ids and policy. Import from the module that defines."""
