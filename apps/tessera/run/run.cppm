export module tessera.app.run;

export import :plan_table;   // the table before the first step
export import :fact_rows;    // what is known of a run before its ranks start, for that table
export import :ranks_here;   // ranks that do something for a command
export import :first_steps;  // the first steps of a run, as a program of their own
