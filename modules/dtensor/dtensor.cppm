// Distributed tensors: conversions, propagation of layouts through operators, communication
// reports.
export module tessera.dtensor;

export import :convert;   // distribute, from_local, to_local, redistribute (async too), full_tensor
export import :crossing;  // tensors that go to other ranks, and whose gradients come back
export import :factories;        // distributed tensors that are created without communication
export import :local_map;        // functions of local parts as functions of distributed tensors
export import :report;           // what was communicated; scopes that allow implicit redistribution
export import :account;          // FLOPs, bytes, communication and memory of a part of a program
export import :propagate;        // how an operator's layouts follow from its operands'
export import :gradient_bucket;  // gradients of ranks that are summed in one call
