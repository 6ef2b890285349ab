"""The detector service on Faust and Kafka, and the command line."""
