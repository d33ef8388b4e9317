"""An execution as something to read: for a model (:mod:`.llm`), for a terminal (:mod:`.terminal`)."""
