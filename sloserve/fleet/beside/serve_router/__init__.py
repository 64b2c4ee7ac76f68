"""The request router of Ray Serve: replicas of a deployment as the servers between which a choice is made."""
