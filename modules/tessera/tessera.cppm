// All of Tessera with one import.
export module tessera;

export import tessera.base;        // errors, small containers, data types, log, environment
export import tessera.options;     // typed reads of a plugin object's options
export import tessera.pipeline;    // schedules of pipelines as data
export import tessera.plugin;      // finding, checking and loading shared libraries
export import tessera.tokenize;    // from texts to token ids and back
export import tessera.data;        // documents, what of them is trained, and the rows of steps
export import tessera.mesh;        // DeviceMesh
export import tessera.placement;   // Shard, Replicate, Partial; layouts; the redistribution planner
export import tessera.device;      // devices, their streams and events, allocators
export import tessera.tensor;      // Tensor, Spec, operators, modes, random streams, StateDict
export import tessera.autograd;    // backward, hooks, activation checkpointing
export import tessera.collective;  // ranks and their communicators
export import tessera.ops;         // the operators
export import tessera.dtensor;     // redistribution, propagation of layouts, reports and accounts
export import tessera.program;   // a step as a program: instructions, text, verification, analysis
export import tessera.execute;   // what executes a program
export import tessera.passes;    // what improves a program
export import tessera.capture;   // how a step becomes a program
export import tessera.graph;     // transformations, data parallelism, updates across steps
export import tessera.nn;        // modules, layers, the Llama family
export import tessera.models;    // families of models: sizes, config keys, Hugging Face's format
export import tessera.optim;     // optimizers, groups of parameters, schedules, clipping
export import tessera.parallel;  // styles and the plan that applies them
export import tessera.checkpoint;  // sharded checkpoints, safetensors
export import tessera.train;       // the training step and the state that a run continues from
