export module tessera.app.plan;

export import :hardware;      // rates of a kind of ranks, and of what is between them
export import :kernel_costs;  // the least time of each kernel at given rates
export import :measure;       // the time of each kernel on this machine
export import :simulate;      // a rank's step in time
export import :report;        // what a plan says of a step
