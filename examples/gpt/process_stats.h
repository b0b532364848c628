// What the operating system knows about this process.
#pragma once

namespace gpt {

double peak_rss_mib();
double rss_mib();
double cpu_seconds();          // of all threads
double seconds_since_start();  // since the process was started, loading of libraries included
double load_average();         // of the last minute

}  // namespace gpt
