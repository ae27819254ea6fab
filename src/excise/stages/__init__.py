"""The steps that methods are made of."""

STAGES: dict[str, str] = {
    "train": "excise.stages.train:Train",
    "add_adapter": "excise.stages.adapters:AddAdapter",
    "edit_embeddings": "excise.stages.embeddings:EditEmbeddings",
    "edit_mlp": "excise.stages.mlp:EditMlp",
}
