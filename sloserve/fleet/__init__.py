"""Several engines and models behind one endpoint: the file that describes them, and the store that outlives them."""
