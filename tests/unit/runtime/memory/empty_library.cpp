// Loaded under the names of others (sharers_test.cpp).
