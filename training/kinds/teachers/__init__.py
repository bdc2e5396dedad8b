"""Many models on disjoint parts of the records: one record moves one of them, whatever they are."""
