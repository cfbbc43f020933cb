// What programs need, with one import: the names that keep their meaning between versions. What
// extends Tessera (plugins of any kind) imports the modules of its kind by name, e.g. `import
// tessera.parallel;`.
export module tessera;

export import :places;     // errors, data types, devices, meshes, layouts
export import :tensors;    // tensors, their distribution, random streams, gradients
export import :operators;  // the operators
export import :ranks;      // ranks and their communicators; plugins
export import :models;     // modules, layers, families, tokenizers, rows of data
export import :training;   // optimizers, parallel plans, captured steps, the step, checkpoints
export import :runs;       // whole runs, models as others store them, text
