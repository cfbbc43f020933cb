// The tensor and the one path that every operator takes.
export module tessera.tensor;

export import tessera.device;    // devices, streams and events, allocators, bytes by category
export import :storage;          // reference-counted memory with a version
export import :spec;             // layout + global shape + dtype of a distributed tensor, interned
export import :value;            // Tensor: strided, distributed or meta
export import :number;           // numbers that know which of a step's variables they follow from
export import :attributes;       // the arguments of one call, as words
export import :arguments;        // an operator's arguments: an aggregate, as words, text and JSON
export import :op;               // Op: one operator's description; the registry
export import :overlap;          // which memory tensors have in common
export import :mode;             // modes: receive calls and actions before they happen
export import :dispatch;         // call(): autograd -> distribution -> kernel
export import :work;             // what a thread is at, for errors
export import :host;             // tensors between devices and the host; what has no kernel
export import :device_plugin;    // the plugin kind "device"
export import :operator_plugin;  // the plugin kind "operator"
export import :step_context;     // what a thread computes of a step: micro-batch, sums, blocks
export import :random;           // named random streams, their seeds and offsets
export import :memory_place;     // places for values that are not the device's memory
export import :state;            // StateDict: names -> tensors and scalars
