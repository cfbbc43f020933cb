// Where ranks stand: n-d arrays of ranks with named axes. Pure topology, no communication.
export module tessera.mesh;

export import :device_mesh;  // DeviceMesh: axes, coordinates, groups, slices, flatten, concatenate
export import :scope;        // the calling thread's rank, and the stack of meshes that it works in
