// The object behind the shared precompiled header.
