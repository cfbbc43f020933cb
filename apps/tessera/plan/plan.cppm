export module tessera.app.plan;

export import :hardware;       // rates of a kind of ranks, and of what is between them
export import :kernel_costs;   // the least time of each kernel at given rates
export import :measure;        // the time of each kernel on this machine
export import :simulate;       // a rank's step in time
export import :sums;           // such a step by operator and collective
export import :failures;       // what failures of ranks cost
export import :planner;        // steps of runs in time
export import :stages;         // steps of models in stages
export import :layouts;        // ways to put a model on ranks
export import :search;         // the fastest layout that fits
export import :report;         // what a plan says of a step
export import :search_report;  // what a search says
