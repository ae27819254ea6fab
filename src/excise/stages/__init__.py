"""The steps that methods are made of."""

STAGES: dict[str, str] = {
    "train": "excise.stages.train:Train",
    "add_adapter": "excise.stages.adapters:AddAdapter",
    "add_second_adapter": "excise.stages.combine:AddSecondAdapter",
    "combine_adapters": "excise.stages.combine:CombineAdapters",
    "prune_ranks": "excise.stages.surgery:PruneRanks",
    "negate_task_vector": "excise.stages.surgery:NegateTaskVector",
    "edit_embeddings": "excise.stages.embeddings:EditEmbeddings",
    "edit_mlp": "excise.stages.mlp:EditMlp",
    "suppress_features": "excise.stages.features:SuppressFeatures",
}
