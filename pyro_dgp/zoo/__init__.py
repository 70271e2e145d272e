"""The named methods: what each is made of, and the one table that lists them."""
