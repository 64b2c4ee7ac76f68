"""Tasks of many calls as workloads: what each call sends, which calls it follows, and how clients drive them."""
