// How a tensor lies on a mesh, and how to get from one way to another. Pure algebra, no data.
export module tessera.placement;

export import :kind;    // Placement: Shard(dim), Replicate, Partial(op), for one mesh axis
export import :layout;  // Layout: a mesh, a placement for each axis, the shard order; interned
export import :local;   // what a rank holds: local shape, offset, runs of global indices
export import :cost;    // what moving bytes along a mesh axis costs
export import :redistribution_plan;  // the steps that bring one layout into another, at least cost
export import :draw;                 // which rank holds which part, as text and as a picture
