export module tessera.app.steps;

export import :device_fit;  // whether a device can run a step
export import :trainer;     // one rank's part of a run
export import :mode;        // modes of data parallelism
export import :trial;       // steps tried on the meta device
