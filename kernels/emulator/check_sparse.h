static void sparse() {}
