// Schedules of pipelines as data: who does what to which micro-batch, in which order.
export module tessera.pipeline;

export import :schedule;  // Schedule: the actions of each rank, and their text
export import :builders;  // GPipe, 1F1B, interleaved 1F1B, zero bubble
export import :check;     // what a schedule must be before ranks run it
export import :simulate;  // its times, its bubble and what it keeps, from costs of the stages
