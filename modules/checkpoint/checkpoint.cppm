// Tensors in files: sharded checkpoints that load on any mesh, and safetensors in and out.
export module tessera.checkpoint;

export import :source;       // TensorSource: named tensors of which any box can be read
export import :memory;       // TensorsInMemory: tensors of this process as a source
export import :safetensors;  // SafetensorsFile and SafetensorsFolder: reading
export import :writer;       // SafetensorsWriter
export import :reader;       // CheckpointReader: a saved folder, from any mesh
export import :save;         // save_checkpoint: all ranks write their shards, atomically
export import :saver;        // CheckpointSaver: the same while training continues
export import :state_store;  // MemoryStateStore: the state of a run in memory that outlives its
                             // ranks
export import :copies;       // check_copies: whether ranks that hold the same have the same bits
export import :load;         // load_state and load_weights: into existing tensors of any layout
export import :steps;        // step-00000100 folders: the latest one, removing old ones
export import :run_place;    // RunPlace: where a run saves: a folder, or a store
export import :save_without_data;  // save_without_data: planning and index at sizes without memory
export import :compare_tensors;    // compare_tensors: where two sources differ
export import :torch;              // TorchCheckpoint: torch.distributed.checkpoint in and out
export import :format;   // CheckpointFormat: the plugin kind; open_tensors: a source of any format
export import :select;   // SelectedTensors: some tensors of a source, in another type
export import :weights;  // export_weights: a checkpoint as one model.safetensors
